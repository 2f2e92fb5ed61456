"""Figures of flatness of a run, by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from crsam import curvature
from crsam.errors import UserError
from crsam.lab.cli import app
from crsam.lab.data.batches import in_order
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.measure import METRICS, Setting, losses, measure, measure_run, sample_of
from crsam.lab.experiment.restore import restored
from crsam.lab.experiment.run import run
from crsam.lab.train.distributed import World
from lab.experiment.runs import assert_same, tiny

FEW = Setting(num_probes=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    run(tiny("model=digits_conv", "model.width=2", "data.validation=0.1"), path, lines=False)
    return path


@pytest.mark.filterwarnings("ignore:.*probes do not tell the trace:UserWarning")
def test_every_metric_gives_a_number_and_json_has_them_all(folder: Path) -> None:
    found = measure_run(folder, list(METRICS), samples=200, how=FEW)
    assert list(found) == list(METRICS)
    assert all(math.isfinite(figure.value) for figure in found.values())
    written = json.loads((folder / "measures-train.json").read_text(), parse_constant=pytest.fail)
    assert written["samples"] == 200
    assert written["metrics"]["loss"]["value"] == found["loss"].value
    assert written["metrics"]["hessian_trace"]["stderr"] > 0


def test_the_trace_is_taken_once_where_its_normalised_one_is_asked_for_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Setting(num_probes=20)
    alone = measure_run(folder, ["hessian_trace"], samples=100, how=how)
    monkeypatch.setitem(METRICS, "hessian_trace", lambda *_: pytest.fail("taken twice"))
    names = ["hessian_trace", "normalized_trace", "gradient_norm"]
    both = measure_run(folder, names, samples=100, how=how)
    assert list(both) == names
    trace, normalized, norm = both.values()
    assert trace == alone["hessian_trace"]
    assert trace.stderr is not None
    assert normalized.value == pytest.approx(trace.value / norm.value, rel=1e-5)
    assert normalized.stderr == pytest.approx(trace.stderr / norm.value, rel=1e-5)
    assert list(measure_run(folder, ["normalized_trace"], samples=100, how=how)) == [
        "normalized_trace"
    ]


def test_figures_taken_alike_stay_and_others_go_and_it_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written() -> list[str]:
        return list(json.loads((folder / "measures-validation.json").read_text())["metrics"])

    for names in (["loss"], ["gradient_norm"]):
        measure_run(folder, names, split="validation", samples=50, how=FEW)
    assert written() == ["loss", "gradient_norm"]
    assert "replaced" not in capsys.readouterr().err
    measure_run(folder, ["sharpness"], split="validation", samples=40, how=FEW)
    assert written() == ["sharpness"]
    told = capsys.readouterr().err
    assert "measures-validation.json: loss, gradient_norm were taken in another way" in told


def test_figures_are_of_the_split_and_the_samples_asked_for(folder: Path) -> None:
    result = RunFolder(folder).result()
    assert result is not None
    wanted = ["loss", "gradient_norm", "sharpness"]
    whole = measure_run(folder, wanted, samples=10**6)
    assert whole["loss"].value == pytest.approx(result["train_loss"], rel=1e-6)
    assert whole["gradient_norm"].value == pytest.approx(result["gradient_norm"], rel=1e-6)
    test = measure_run(folder, ["loss"], split="test")
    assert test["loss"].value == pytest.approx(result["test_loss"], rel=1e-5)
    there = restored(folder, World())
    there.model.eval()
    order = torch.randperm(len(there.splits.train), generator=torch.Generator().manual_seed(0))
    some = there.splits.train.part(order[:64])  # not the first ones, which may be of one class
    expected = curvature.gradient_norm(
        there.model, losses, list(in_order(some, there.splits.feed, 64))
    )
    got = measure_run(folder, ["gradient_norm"], samples=64)["gradient_norm"]
    assert got.value == pytest.approx(expected, rel=1e-5)


def test_the_model_is_left_in_its_mode(folder: Path) -> None:
    there = restored(folder, World())
    there.model.train()
    measure(there.model, there.splits.train, there.splits.feed, ["loss"], samples=32)
    assert there.model.training


def test_a_recipe_can_ask_for_figures_through_training(tmp_path: Path) -> None:
    wanted = 'measure.metrics=["gradient_norm", "hessian_trace"]'
    options = (wanted, "measure.every=2", "measure.samples=100", "measure.num_probes=3")
    run(tiny(*options), tmp_path / "with", lines=False)
    lines = [m for m in RunFolder(tmp_path / "with").metrics() if m["kind"] == "measure"]
    assert [m["epoch"] for m in lines] == [2, 3]
    assert all(m["gradient_norm"] > 0 and m["hessian_trace_stderr"] > 0 for m in lines)
    run(tiny(*options), tmp_path / "again", lines=False)
    assert_same(tmp_path / "with", tmp_path / "again")
    run(tiny(), tmp_path / "without", lines=False)
    states = [torch.load(tmp_path / n / "checkpoint.pt", weights_only=True)["training"]["model"]
              for n in ("with", "without")]  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values()))


def test_unknown_metrics_are_refused_before_anything_is_done(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'hessian_trace'"):
        measure_run(folder, ["hessian_trce"])
    with pytest.raises(UserError, match="named twice"):
        measure_run(folder, ["loss", "loss"])
    with pytest.raises(UserError, match="unknown metric"):
        run(tiny('measure.metrics=["nothing"]'), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_radius_reaches_the_ratio_and_stands_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["approximation_ratio", "approximation_ratio_backtracking"]
    options = ["--metrics", ",".join(names), "--samples", "60", "--rho", "0.4", "--threads", "1"]
    assert CliRunner().invoke(app, ["measure", str(folder), *options]).exit_code == 0
    written = json.loads((folder / "measures-train.json").read_text())["metrics"]
    there = restored(folder, World())
    there.model.eval()
    batches = list(in_order(sample_of(there.splits.train, 60), there.splits.feed, 512))
    for name, ascent in zip(names, ("plain", "backtracking")):
        found = curvature.approximation_ratio(
            there.model,
            losses,
            batches,
            rho=0.4,
            ascent=ascent,  # type: ignore[arg-type]
        )
        figure = written[name]
        assert figure["value"] == pytest.approx(found.mean, rel=1e-5)
        assert figure["parts"] == {
            "of_means": pytest.approx(found.of_means, rel=1e-5),
            "left_out": found.left_out,
            "rho": 0.4,
        }


def test_what_belongs_to_a_figure_is_printed_below_it(folder: Path) -> None:
    options = ["--metrics", "approximation_ratio,generalization_bound,loss", "--samples", "60"]
    printed = CliRunner().invoke(app, ["measure", str(folder), *options, "--probes", "3"]).output
    words = [line.split()[0] for line in printed.splitlines() if line.strip()]
    start = words.index("metric")  # below the title
    assert words[start : start + 12] == [
        *("metric", "approximation_ratio", "of_means", "left_out", "rho"),
        *("generalization_bound", "loss", "curvature", "slope", "complexity", "rho", "loss"),
    ]


def test_the_bound_is_the_sum_of_its_terms(folder: Path) -> None:
    how = Setting(num_probes=4, rho=0.2)
    found = measure_run(folder, ["generalization_bound", "loss", "gradient_norm"], how=how)
    bound = found["generalization_bound"]
    terms = {name: value for name, value in bound.parts.items() if name != "rho"}
    assert list(terms) == ["loss", "curvature", "slope", "complexity"]
    assert bound.value == pytest.approx(sum(terms.values()))
    assert bound.parts["rho"] == 0.2
    assert terms["loss"] == pytest.approx(found["loss"].value, rel=1e-5)
    assert terms["slope"] == pytest.approx(found["gradient_norm"].value, rel=1e-5)  # γ is 1
    trace = measure_run(folder, ["hessian_trace"], how=how)["hessian_trace"]
    assert terms["curvature"] == pytest.approx(0.2**2 / 2 * trace.value, rel=1e-5)


def test_norms_of_batches_depend_on_the_batches_and_c_of_w_on_the_norm(folder: Path) -> None:
    names = ["gradient_norm", "gradient_norm_of_batches", "hessian_trace", "normalized_trace",
             "normalized_trace_of_batches"]  # fmt: skip
    by_size = {
        size: measure_run(folder, names, samples=96, how=Setting(num_probes=20, batch_size=size))
        for size in (8, 96)
    }
    for size, found in by_size.items():
        full, mean, trace, by_full, by_mean = (found[name].value for name in names)
        assert by_full == pytest.approx(trace / full, rel=1e-5)
        assert by_mean == pytest.approx(trace / mean, rel=1e-5)
        assert found["gradient_norm_of_batches"].parts == {"batch_size": size}
    small, whole = by_size[8], by_size[96]
    assert whole["gradient_norm_of_batches"].value == pytest.approx(whole["gradient_norm"].value)
    assert small["gradient_norm"].value == pytest.approx(whole["gradient_norm"].value, rel=1e-4)
    assert small["gradient_norm_of_batches"].value > 1.1 * small["gradient_norm"].value


def test_a_recipe_can_measure_training_and_test_images(tmp_path: Path) -> None:
    wanted = 'measure.metrics=["loss", "accuracy", "approximation_ratio"]'
    options = ("measure.split=both", "measure.every=3", "measure.samples=5000", "measure.rho=0.3")
    result = run(tiny(wanted, *options), tmp_path, lines=False)
    lines = RunFolder(tmp_path).metrics()
    train, test = ([m for m in lines if m["kind"] == k] for k in ("measure", "measure_test"))
    assert [m["epoch"] for m in (*train, *test)] == [3, 3]
    assert test[0]["loss"] == pytest.approx(result["test_loss"], rel=1e-5)
    assert test[0]["accuracy"] == pytest.approx(result["test_accuracy"], rel=1e-6)
    assert train[0]["loss"] == pytest.approx(result["train_loss"], rel=1e-2)
    for line in (train[0], test[0]):
        assert line["approximation_ratio_rho"] == 0.3
        assert 0 <= line["approximation_ratio_left_out"] < 1437
        assert line["approximation_ratio_of_means"] > 0
