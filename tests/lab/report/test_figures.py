"""Figures show the numbers of the runs, on one scale, and never break on what runs leave behind."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from crsam.errors import UserError
from crsam.lab.cli import app
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.report.runs import read_runs

pytest.importorskip("matplotlib")

from crsam.lab.report.figures import FORMATS, landscapes, spectra, style, training, write_figures
from crsam.lab.report.figures.series import series
from crsam.lab.report.figures.style import label, title
from crsam.lab.report.groups import Group, grouped

MEASURED = ("top_eigenvalue", "hessian_trace", "gradient_norm", "normalized_trace",
            "approximation_ratio")  # fmt: skip
EPOCHS = 4


def write_run(
    folder: Path,
    method: str = "sam",
    seed: int = 0,
    *,
    shift: float = 0.0,
    overrides: Any = (),
    measured: bool = True,
) -> Path:
    """A run's folder as a run leaves it, with made-up numbers."""
    folder.mkdir(parents=True)
    recipe = load_recipe("digits", [f"method={method}", f"seed={seed}", *overrides])
    (folder / "recipe.toml").write_text(to_toml(recipe))
    lines: list[dict[str, Any]] = []
    for epoch in range(1, EPOCHS + 1):
        value = shift + seed + 1 / epoch
        lines.append({"kind": "train", "epoch": epoch, "step": 5 * epoch, "lr": 0.1, "loss": value,
                      "accuracy": 50.0 + epoch, "sharpness": 0.1 * value})  # fmt: skip
        lines.append({"kind": "validation", "epoch": epoch, "loss": value, "accuracy": 40.0})
        if measured:
            lines.append({"kind": "measure", "epoch": epoch, **dict.fromkeys(MEASURED, value)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {"method": method, "seed": seed, "test_accuracy": 90.0 + seed, "test_loss": 0.5,
              "diverged_at": None}  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_landscape(file: Path, depth: float = 1.0, **about: Any) -> Path:
    x, y = np.linspace(-1, 1, 7), np.linspace(-1, 1, 5)
    loss = depth * (x**2 + y[:, None] ** 2) + 0.5
    np.savez(file, x=x, y=y, loss=loss, about=json.dumps({"kind": "filter", **about}))
    return file


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two methods, two seeds each, with landscapes and spectra."""
    for k, method in enumerate(("sgd", "crsam")):
        for seed in range(2):
            folder = write_run(tmp_path / f"runs/{method}/seed{seed}", method, seed, shift=k)
            write_landscape(folder / "landscape.npz", depth=3.0 - k)
            np.savez(folder / "spectrum-train.npz", nodes=[[0.0, 1.0 + k]], weights=[[0.9, 0.1]],
                     num_weights=10)  # fmt: skip
    return tmp_path / "runs"


def groups_of(folder: Path) -> list[Group]:
    return grouped(read_runs([folder]))


ALL = ("figure1-approximation-ratio", "figure2-curvature", "figure4-landscapes", "landscape-rise",
       "figure5-convergence", "step-report", "spectrum-train")  # fmt: skip


def test_every_figure_is_written_in_every_format(runs: Path, tmp_path: Path) -> None:
    drawn = write_figures([runs], tmp_path / "out/deep", FORMATS, dpi=40)
    expected = {f"{name}.{kind}" for name in ALL for kind in FORMATS}
    assert {file.name for file in drawn.files} == expected
    heads = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for file in drawn.files:
        assert file.read_bytes().startswith(heads[file.suffix[1:]])
        assert file.stat().st_size > 2000
    assert drawn.notes == []
    assert not list((tmp_path / "out/deep").glob("*.tmp"))


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    groups = groups_of(write_run(tmp_path / "run"))
    for name in ("a", "b"):
        ((_, figure),) = training.steps(groups)
        with style.printed():
            style.save(figure, tmp_path / name, "x", FORMATS, dpi=40)
    for kind in FORMATS:
        assert (tmp_path / f"a/x.{kind}").read_bytes() == (tmp_path / f"b/x.{kind}").read_bytes()


def test_curves_are_the_mean_over_seeds_with_their_spread(runs: Path) -> None:
    groups = groups_of(runs)
    assert [label(group) for group in groups] == ["SGD", "CR-SAM"]
    found = series(groups[1], "measure", "hessian_trace")
    assert found is not None
    values = np.array([[1 + seed + 1 / epoch for epoch in range(1, 5)] for seed in range(2)])
    np.testing.assert_allclose(found.mean, values.mean(0))
    np.testing.assert_allclose(found.std, values.std(0, ddof=1))
    ((_, figure),) = training.geometry(groups)
    assert len(figure.axes) == 6
    trace = next(axes for axes in figure.axes if "trace" in axes.get_title())
    np.testing.assert_allclose(trace.lines[1].get_ydata(), values.mean(0))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "SGD (2 seeds)",
        "CR-SAM (2 seeds)",
    ]


def test_convergence_has_training_validation_and_the_test_result(runs: Path) -> None:
    ((name, figure),) = training.convergence(groups_of(runs))
    assert name == "figure5-convergence"
    loss, accuracy = figure.axes
    styles = [line.get_linestyle() for line in loss.lines[:2]]
    assert styles[0] != styles[1]
    (errors,) = [c for c in accuracy.containers if c.lines[0].get_ydata()[0] == 90.5][:1]
    assert errors.lines[0].get_xdata()[0] == EPOCHS
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-3:] == ["training", "validation", "test"]


def test_step_report_has_all_that_the_steps_reported(runs: Path) -> None:
    ((_, figure),) = training.steps(groups_of(runs))
    assert [axes.get_title() for axes in figure.axes] == ["learning rate", "sharpness"]


def test_landscapes_are_side_by_side_on_one_scale(runs: Path) -> None:
    ((name, figure),) = landscapes.surfaces(groups_of(runs))
    assert name == "figure4-landscapes"
    above, below = figure.axes[:2], figure.axes[2:4]
    assert [axes.get_title() for axes in above] == ["SGD", "CR-SAM"]
    limits = {axes.get_zlim() for axes in above}
    norms = {(m.norm.vmin, m.norm.vmax) for axes in below for m in axes.collections if m.cmap}
    assert len(limits) == 1
    assert (0.5, 6.5) in norms  # from the lowest of both to the highest, which is SGD's


def test_far_losses_are_shown_by_their_logarithm_infinite_ones_at_the_top() -> None:
    loss = np.array([[1.0, 100.0], [math.inf, math.nan]])
    about: dict[str, Any] = {}
    land = landscapes.Landscape(np.arange(2.0), np.arange(2.0), loss, None, about)
    scale = landscapes.scale_of([landscapes.Shown("a", 0, land)])
    np.testing.assert_allclose(scale.seen(loss), [[0, 2], [2, math.nan]])
    assert landscapes.notes(land) == ["1 of 4 points missing", "not finite at 1 points"]


def test_rings_give_the_rise_at_a_distance(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 41)
    loss = 3 * (x**2 + x[:, None] ** 2) + 7
    distance, low, mean, high = landscapes.rings(landscapes.Landscape(x, x, loss, None, {}))
    assert (distance[0], mean[0]) == (0, 0)
    assert distance[-1] == pytest.approx(1)
    np.testing.assert_allclose(mean, 3 * distance**2, atol=0.15)
    assert (low <= mean).all()
    assert (mean <= high).all()


def test_lines_and_planes_show_where_the_models_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sam")
    about = {"of": ["a/seed0", "b$_$/seed0", "c/seed0"]}
    places = [[0.0, 0.0], [1.0, 0.0], [0.5, 0.7]]
    write_landscape(folder / "landscape-plane.npz", **{**about, "kind": "plane", "places": places})
    x = np.linspace(-0.5, 1.5, 9)
    line = {"kind": "line", "of": ["a", "b"], "places": [[0.0], [1.0]]}
    np.savez(folder / "landscape-line.npz", x=x, loss=x**2, about=json.dumps(line))
    groups = groups_of(folder)
    ((name, plane),) = landscapes.surfaces(groups)
    assert name == "landscape-plane"
    assert [t.get_text() for t in plane.axes[1].texts][-3:] == [
        "a/seed0",
        r"b\$_\$/seed0",
        "c/seed0",
    ]
    ((name, figure),) = landscapes.lines(groups)
    assert name == "landscape-line"
    dots = [line.get_xydata().ravel().tolist() for line in figure.axes[0].lines[1:]]
    assert dots == [[0, 0], [1, 1]]
    plane.draw_without_rendering()  # a dollar begins no formula


def test_test_images_are_dashed_beside_training_images(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sam")
    on_test = [
        {"kind": "measure_test", "epoch": epoch, "hessian_trace": 10.0 * epoch, "loss": 0.1 * epoch,
         "accuracy": 30.0 + epoch}
        for epoch in range(1, EPOCHS + 1)
    ]  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in on_test))
    groups = groups_of(folder)
    ((_, curvature),) = training.geometry(groups)
    (trace,) = (axes for axes in curvature.axes if "Hessian trace" in axes.get_title())
    train, test = trace.lines
    assert (train.get_linestyle(), test.get_linestyle()) == ("-", "--")
    assert list(test.get_ydata()) == [10.0, 20.0, 30.0, 40.0]
    words = [text.get_text() for text in curvature.legends[0].get_texts()]
    assert words == ["SAM", "training images", "test images"]
    ((_, convergence),) = training.convergence(groups)
    loss, accuracy = (axes.lines[2].get_ydata() for axes in convergence.axes)
    assert list(loss) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert list(accuracy) == [31, 32, 33, 34]
    words = [text.get_text() for text in convergence.legends[0].get_texts()]
    assert words == ["SAM", "training", "validation", "test", "test, at the end"]


def test_spectra_are_the_densities_of_the_files(runs: Path) -> None:
    ((_, figure),) = spectra.densities(groups_of(runs))
    (axes,) = figure.axes
    for k, line in enumerate(axes.lines):
        x, y = line.get_data()
        x, y = np.asarray(x), np.nan_to_num(np.asarray(y))
        assert np.trapezoid(y, x) == pytest.approx(1, rel=0.01)
        assert x[np.where(x > 0.5, y, 0).argmax()] == pytest.approx(1.0 + k, abs=0.02)


def test_what_runs_leave_behind_is_drawn_as_far_as_it_goes(runs: Path, tmp_path: Path) -> None:
    """Every way in which a folder can be broken, at once."""
    half = runs / "sgd/seed0"
    (half / "metrics.jsonl").write_text((half / "metrics.jsonl").read_text()[:-40])
    (half / "result.json").write_text('{"test_acc')
    (half / "landscape.npz").write_bytes(b"PK\x03\x04half")
    (half / "landscape-line.npz").write_bytes(b"")
    (half / "spectrum-train.npz").write_bytes(b"nonsense")
    diverged = runs / "crsam/seed1"
    text = (diverged / "metrics.jsonl").read_text().replace("2.3333333333333335", "null")
    (diverged / "metrics.jsonl").write_text(text + '{"kind": "train", "epoch": NaN, "loss": 3}\n')
    (diverged / "result.json").write_text('{"diverged_at": 15, "test_loss": null}')
    (runs / "empty").mkdir()
    broken = runs / "garbage"
    broken.mkdir()
    (broken / "recipe.toml").write_text("not = [toml")
    x = np.linspace(-1, 1, 3)
    loss = np.full((3, 3), math.nan)
    loss[0] = [1.0, math.inf, 2.0]
    np.savez(runs / "crsam/seed0/landscape.npz", x=x, y=x, loss=loss, about="[]")
    drawn = write_figures([runs], tmp_path / "out", ["svg"])
    said = "\n".join(drawn.notes)
    for words in (
        "sgd/seed0: metrics.jsonl: line",
        "sgd/seed0: result.json is not whole",
        "sgd/seed0: landscape.npz is not whole",
        "sgd/seed0: landscape-line.npz is not a landscape",
        "sgd/seed0: unfinished",
        "crsam/seed1: diverged",
        "empty: an empty folder",
        "garbage: recipe.toml is not whole",
    ):
        assert words in said
    assert {"figure5-convergence", "figure2-curvature"} <= {file.stem for file in drawn.files}
    svg = (tmp_path / "out/figure5-convergence.svg").read_text()
    assert "1 diverged" in svg
    assert "1 unfinished" in svg
    found = series(groups_of(runs)[1], "train", "loss")
    assert found is not None
    assert found.mean[2] == pytest.approx(1 + 1 / 3)  # the other seed's alone
    assert found.ends == [(4.0, 2.25)]


def test_landscapes_that_say_nonsense_about_themselves_are_no_crash(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    x = np.linspace(-1, 1, 3)
    for k, about in enumerate(
        ["3", "nonsense", '{"places": "x", "of": [1]}',
         '{"places": [[1], null], "of": [1, 2], "eigenvalues": 3}']
    ):  # fmt: skip
        np.savez(folder / f"landscape-{k}.npz", x=x, y=x, loss=np.ones((3, 3)), about=about)
        np.savez(folder / f"landscape-line{k}.npz", x=x, loss=np.ones(3), about=about)
    np.savez(folder / "landscape.npz", x=x[:1], y=x, loss=np.ones((3, 1)))  # a plane is more
    groups = groups_of(folder)
    drawn = dict([*landscapes.surfaces(groups), *landscapes.lines(groups)])
    assert set(drawn) == {f"landscape-{kind}{k}" for k in (0, 2, 3) for kind in ("", "line")}
    for figure in drawn.values():
        figure.draw_without_rendering()


def test_different_recipes_are_told_apart_and_told(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", "sam", overrides=["methods.sam.rho=0.1"], measured=False)
    other = ["methods.sam.rho=0.2", "train.epochs=9"]
    write_run(tmp_path / "runs/b", "sam", overrides=other, measured=False)
    groups = groups_of(tmp_path / "runs")
    assert len({label(group) for group in groups}) == 2
    assert all(label(group).startswith("SAM, ") for group in groups)
    drawn = write_figures([tmp_path / "runs"], tmp_path / "out")
    assert any("more than method and seed: train.epochs" in note for note in drawn.notes)


def test_missing_metrics_are_told_with_what_would_help(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", measured=False)
    drawn = write_figures([folder], tmp_path / "out")
    assert {file.stem for file in drawn.files} == {"figure5-convergence", "step-report"}
    said = "\n".join(drawn.notes)
    assert "figure2-curvature is not drawn: no run has measure.metrics with" in said
    assert "figure4-landscapes is not drawn: no run has a landscape: crsam landscape" in said


def test_the_key_is_as_wide_as_the_figure_at_most_and_keeps_all_names(tmp_path: Path) -> None:
    for k in range(5):
        long = [f"methods.sam.rho=0.12345{k}", f"optimizer.lr=0.12345{5 - k}"]
        write_run(tmp_path / "runs" / str(k), overrides=long, measured=False)
    groups = groups_of(tmp_path / "runs")
    (_, convergence), (_, report) = [*training.convergence(groups), *training.steps(groups)]
    for figure in (convergence, report):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert legend.get_window_extent().width <= figure.bbox.width
        names = {text.get_text() for text in legend.get_texts()}
        assert {style.with_seeds(group) for group in groups} <= names


def test_many_groups_and_strange_names_are_no_crash(tmp_path: Path) -> None:
    for k, name in enumerate(["_a$b", "$x^{$", "<script>", "日本", "4"]):
        rho = [f"methods.sam.rho=0.{k + 1}"]
        folder = write_run(tmp_path / "runs" / name, overrides=rho, measured=False)
        write_landscape(folder / "landscape.npz")
        if k < 4:
            (folder / "recipe.toml").unlink()  # named by its folder
    drawn = write_figures([tmp_path / "runs"], tmp_path / "out", ["svg"])
    names = {file.stem for file in drawn.files}
    assert {"figure4-landscapes", "figure4-landscapes-2"} <= names
    assert "&lt;script&gt;" in (tmp_path / "out/figure5-convergence.svg").read_text()


def test_mistakes_are_told(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="unknown format 'pgn': did you mean 'png'"):
        write_figures([runs], tmp_path / "out", ["pgn"])
    with pytest.raises(UserError, match="no folder nowhere"):
        write_figures(["nowhere"], tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        write_figures([runs], tmp_path / "file")
    untrained = tmp_path / "untrained"
    untrained.mkdir()
    (untrained / "recipe.toml").write_text(to_toml(load_recipe("digits")))
    with pytest.raises(UserError, match="nothing to draw in these 1 runs"):
        write_figures([untrained], tmp_path / "out")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        write_figures([runs], tmp_path / "out")


def test_methods_are_named_as_papers_name_them() -> None:
    assert [title(name) for name in ("sgd", "crsam", "friendlysam")] == [
        "SGD",
        "CR-SAM",
        "FriendlySAM",
    ]


def test_the_command_names_what_it_wrote_and_what_is_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", measured=False)
    words = ["figures", str(folder), "-o", str(tmp_path / "out"), "--format", "svg, png", "--dpi"]
    ended = CliRunner().invoke(app, [*words, "40"])
    assert ended.exit_code == 0, ended.output
    written = {str(file) for file in (tmp_path / "out").iterdir()}
    assert set(ended.stdout.splitlines()) == written
    assert len(written) == 4
    assert "figure4-landscapes is not drawn" in ended.stderr
