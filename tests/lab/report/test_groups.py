"""Seeds belong together, differences are named, and only like is compared with like."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from crsam.lab.report.groups import differing, grouped, mean_of, paired, reference_of
from crsam.lab.report.page.content import content_of
from crsam.lab.report.runs import read_runs
from lab.report.folders import make_comparison, make_run


def test_runs_that_differ_in_their_seed_are_one_group_and_the_optimizer_comes_first(
    tmp_path: Path,
) -> None:
    groups = grouped(read_runs([make_comparison(tmp_path, seeds=3)]))
    assert [group.label for group in groups] == ["sgd", "sam", "crsam"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1, 2]] * 3


def test_what_changes_nothing_does_not_part_runs_and_what_does_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "sam", 0)
    make_run(
        tmp_path / "b",
        "sam",
        1,
        "log.every=7",
        "data.root=elsewhere",
        "data.workers=3",
        "methods.crsam.rho=9.0",
    )
    make_run(tmp_path / "c", "sam", 0, "methods.sam.rho=0.7")
    groups = grouped(read_runs([tmp_path]))
    assert [group.label for group in groups] == ["sam, rho 0.3", "sam, rho 0.7"]
    assert [len(group.runs) for group in groups] == [2, 1]
    assert differing(groups) == {"method.rho": ["0.3", "0.7"]}


def test_labels_are_told_apart_even_where_more_differs_than_they_have_room_for(
    tmp_path: Path,
) -> None:
    for k, width in enumerate((8, 16, 32)):
        many = [f"{key}=0.{k + 1}" for key in ("optimizer.lr", "loss.mixup", "data.label_noise")]
        make_run(tmp_path / f"r{k}", "sam", 0, *many[: 3 * (k > 0)], f"model.width={width}")
    labels = [group.label for group in grouped(read_runs([tmp_path]))]
    assert len(set(labels)) == 3
    assert all(len(label) < 60 for label in labels)


def test_labels_that_are_the_same_have_the_names_of_folders(tmp_path: Path) -> None:
    make_run(tmp_path / "first", "sam", 0)
    for key in ("data.label_noise", "loss.mixup", "optimizer.lr", "loss.label_smoothing"):
        make_run(tmp_path / key, "sam", 0, f"{key}=0.2")
    labels = [group.label for group in grouped(read_runs([tmp_path]))]
    assert len(set(labels)) == 5
    assert "sam, first" in labels
    named = [label.rpartition(", ")[2] for label in labels]
    assert named.count("…") == 3  # told apart by three keys, of four
    assert "first" in named


def test_labels_have_what_tells_groups_apart_and_names_before_numbers(tmp_path: Path) -> None:
    linear = ["methods.crsam.form=linear", "methods.crsam.alpha=0.5", "methods.crsam.beta=0.1"]
    make_run(tmp_path / "log", "crsam", 0, "methods.crsam.form=log", "methods.crsam.rho=0.3")
    make_run(tmp_path / "linear", "crsam", 0, *linear, "methods.crsam.rho=0.1")
    labels = [group.label for group in grouped(read_runs([tmp_path]))]
    assert sorted(labels) == ["crsam, form linear, …", "crsam, form log, …"]
    make_run(tmp_path / "more", "crsam", 0, *linear, "methods.crsam.rho=0.2")
    labels = [group.label for group in grouped(read_runs([tmp_path]))]
    assert "crsam, form linear, rho 0.2, …" in labels


def test_runs_of_a_study_are_called_as_it_calls_them_and_more_epochs_come_last(
    tmp_path: Path,
) -> None:
    study = tmp_path / "fair"
    names = {"final/sgd": "SGD", "final/sam-0.1": "SAM 0.1", "equal-time/sam-0.1": "SAM 0.1"}
    for place in names:
        longer = ["train.epochs=9"] if place.startswith("equal") else []
        for seed in (0, 1):
            make_run(study / place / f"seed{seed}", place.split("/")[1][:3], seed, *longer)
    told = [{"contestant": name} for name in names.values()]
    (study / "study.json").write_text(json.dumps({"kind": "crsam study", "runs": told}))
    groups = grouped(read_runs([study]))
    assert [group.label for group in groups] == ["SGD", "SAM 0.1", "SAM 0.1, equal time"]
    assert [len(group.runs) for group in groups] == [2, 2, 2]
    (study / "study.json").write_text("not JSON")
    assert grouped(read_runs([study]))[-1].label.startswith("sam, epochs")
    (study / "study.json").write_text(json.dumps({"runs": told}))
    make_run(tmp_path / "other/final/sgd/seed0", "sgd", 0, "model.width=8")
    (tmp_path / "other/study.json").write_text(json.dumps({"runs": told[:1]}))
    labels = [group.label for group in grouped(read_runs([tmp_path]))]
    assert {"SGD, fair/final/sgd", "SGD, other/final/sgd"} < set(labels)


def test_groups_are_compared_only_within_their_setting(tmp_path: Path) -> None:
    make_comparison(tmp_path / "a")
    make_run(tmp_path / "b", "sam", 0, "model.width=16")
    groups = grouped(read_runs([tmp_path]))
    against = {g.label: getattr(reference_of(g, groups), "label", None) for g in groups}
    assert against == {
        "sgd": None, "sam, width —": "sgd", "crsam": "sgd", "sam, width 16": None,
    }  # fmt: skip


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    sgd = [make_run(tmp_path / f"sgd/{seed}", "sgd", seed) for seed in (0, 1, 2)]
    sam = [make_run(tmp_path / f"sam/{seed}", "sam", seed) for seed in (1, 2, 5)]
    for folder, accuracy in zip([*sgd, *sam], [50.0, 10.0, 20.0, 13.0, 21.0, 99.0]):
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(result | {"test_accuracy": accuracy}))
    reference, group = grouped(read_runs([tmp_path]))
    gain = paired("test_accuracy", group, reference)
    assert gain is not None
    assert gain.num == 2
    assert gain.mean == pytest.approx((3 + 1) / 2)
    assert gain.stderr == pytest.approx(math.sqrt(2) / math.sqrt(2))


def test_a_second_run_of_a_seed_is_not_another_seed(tmp_path: Path) -> None:
    make_comparison(tmp_path / "a", seeds=3)
    make_run(tmp_path / "copy", "sam", 0)
    groups = grouped(read_runs([tmp_path]))
    sam = [group for group in groups if group.method == "sam"]
    assert [[run.seed for run in group.runs] for group in sam] == [[0, 1, 2], [0]]
    assert len({group.label for group in sam}) == 2


def test_a_mean_with_a_hole_in_it_is_none() -> None:
    assert mean_of([]) is None
    assert mean_of([1.0, math.nan]) is None
    assert mean_of([1.0, "2"]) is None
    assert mean_of([True]) is None
    single = mean_of([3])
    assert single is not None
    assert (single.mean, single.std) == (3.0, None)


def test_the_summary_counts_what_ended_and_what_diverged(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=3)
    (tmp_path / "sam/seed1/result.json").unlink()
    file = tmp_path / "crsam/seed2/result.json"
    spoilt = json.loads(file.read_text()) | {"diverged_at": 70, "train_loss": None}
    file.write_text(json.dumps(spoilt))
    content = content_of(read_runs([tmp_path]))
    sgd, sam, crsam = content["summary"]["rows"]
    assert (sgd["ended"], sam["ended"], crsam["ended"], crsam["diverged"]) == (3, 2, 3, 1)
    columns = [column["key"] for column in content["summary"]["columns"]]
    assert sam["cells"][columns.index("test_accuracy")]["num"] == 2
    assert sam["gain"]["num"] == 2
    assert crsam["cells"][columns.index("train_loss")] is None  # not the mean of the others
    states = {run["name"]: run["state"] for run in content["runs"]}
    assert states["sam/seed1"] == "unfinished"
    assert states["crsam/seed2"] == "diverged"


def test_geometry_has_errors_over_seeds_or_of_the_estimate(tmp_path: Path) -> None:
    make_run(tmp_path / "sgd/0", "sgd", 0)
    make_run(tmp_path / "sam/0", "sam", 0)
    make_run(tmp_path / "sam/1", "sam", 1)
    told = {"samples": 5, "metrics": {"top_eigenvalue": {"value": 4.0, "stderr": None}}}
    (tmp_path / "sam/0/measures-test.json").write_text(json.dumps(told))
    measured, on_test, at_end = content_of(read_runs([tmp_path]))["geometry"]
    assert [column["key"] for column in measured["columns"]] == ["hessian_trace"]
    assert measured["rows"][0]["cells"] == [{"mean": 57.0, "error": 1.5, "num": 1, "of": 1}]
    assert measured["rows"][1]["cells"] == [
        {"mean": 55.5, "error": pytest.approx(0.5), "num": 2, "of": 2}
    ]
    assert measured["rows"][1]["runs"][1] == [{"mean": 56.0, "error": 1.5}]
    assert "at most 5 test images" in on_test["title"]
    assert [row["cells"] for row in on_test["rows"]] == [
        [None],
        [{"mean": 4.0, "error": None, "num": 1, "of": 2}],
    ]
    assert [column["key"] for column in at_end["columns"]] == ["gradient_norm", "sharpness"]


def test_what_was_measured_in_other_ways_is_not_averaged(tmp_path: Path) -> None:
    done = make_run(tmp_path / "other", "sgd", 0) / "result.json"
    steps = json.loads(done.read_text())["steps"]
    for seed, (step, rho) in enumerate([(steps, 0.05), (steps, 0.5), (steps // 2, 0.05)]):
        folder = make_run(tmp_path / f"sam/{seed}", "sam", seed)
        told = {"step": step, "samples": 5, "rho": rho, "metrics": {"sharpness": {"value": rho}}}
        (folder / "measures-test.json").write_text(json.dumps(told))
    tables = content_of(read_runs([tmp_path]))["geometry"]
    found = {t["title"]: t["rows"][1]["cells"][0] for t in tables if "crsam measure" in t["title"]}
    assert [(cell["mean"], cell["num"]) for cell in found.values()] == [
        (0.05, 1), (0.5, 1), (0.05, 1)
    ]  # fmt: skip
    first, second, third = found
    assert "step the last, rho 0.05" in first
    assert "step the last, rho 0.5" in second
    assert f"step {steps // 2}, rho 0.05" in third
