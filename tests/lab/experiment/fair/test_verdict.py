"""What is chosen, by what, and how sure the differences are."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crsam.lab.experiment.comparison import Spread
from crsam.lab.experiment.fair import show
from crsam.lab.experiment.fair.conduct import Clock
from crsam.lab.experiment.fair.jobs import Job, look, per_epoch
from crsam.lab.experiment.fair.show import show_plan, show_verdict
from crsam.lab.experiment.fair.summary import LIMIT, curves, summary, write_summary
from crsam.lab.experiment.fair.verdict import over, verdict
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.interval import interval
from lab.experiment.fair.studies import pretend, small


def test_the_interval_is_students() -> None:
    # n = 5, mean 1, deviation √2.5; t of 4 degrees of freedom at 97.5 %: 2.776445.
    found = interval([-1.0, 0.0, 1.0, 2.0, 3.0])
    half = 2.776445105 * math.sqrt(2.5 / 5)
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half), rel=1e-8)
    assert math.isnan(interval([1.0]).low)


def test_the_best_validation_accuracy_is_chosen_whatever_the_test_says(tmp_path: Path) -> None:
    study = small(tmp_path)
    valid = {("SAM", 0.05): 80.0, ("SAM", 0.5): 85.0, ("CR-SAM log", 0.05): 90.0}

    def accuracy(job: Job) -> float:
        assert job.setting is not None
        if job.stage == "choose":
            return valid.get((job.contestant, job.setting["rho"]), 70.0)
        return 10.0 if job.contestant == "SAM" else 20.0 + job.recipe.seed

    assert look(study, tmp_path).chosen == {"SGD": {}}
    pretend(study, tmp_path, accuracy)
    pretend(study, tmp_path, accuracy)
    progress = look(study, tmp_path)
    assert progress.is_complete
    assert progress.chosen["SAM"] == {"rho": 0.5}
    assert progress.chosen["CR-SAM log"] == {"rho": 0.05}
    finals = [job for job in progress.jobs if job.stage == "final" and job.contestant == "SAM"]
    assert all(job.recipe.methods["sam"]["rho"] == 0.5 for job in finals)
    found = verdict(progress)
    assert {e.split(":")[0] for e in found.at_an_edge} == {"SAM", "CR-SAM log"}
    curve = over(found.tried, "rho")["SAM"]
    assert {rho: value.mean for rho, value in curve.items()} == {0.05: 80.0, 0.5: 85.0}


def test_of_equals_the_lower_loss_is_chosen_and_never_one_that_diverged(tmp_path: Path) -> None:
    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 50.0)
    files = {job.place: tmp_path / job.place / "result.json" for job in look(study, tmp_path).jobs
             if job.contestant == "SAM" and job.stage == "choose"}  # fmt: skip
    first, second = files.values()
    second.write_text(
        second.read_text().replace('"validation_loss": 1.0', '"validation_loss": 0.5')
    )
    assert look(study, tmp_path).chosen["SAM"] == {"rho": 0.5}
    second.write_text(second.read_text().replace('"diverged_at": null', '"diverged_at": 3'))
    assert look(study, tmp_path).chosen["SAM"] == {"rho": 0.05}
    first.unlink()
    assert "SAM" not in look(study, tmp_path).chosen


def test_beyond_an_edge_that_is_best_more_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small(tmp_path, "study.choose.widen={rho = 3}", "study.choose.seeds=[7, 8]")
    peaks = {"SAM": 5.0, "CR-SAM log": 0.05}

    def accuracy(job: Job) -> float:
        assert job.setting is not None
        if job.stage != "choose":
            return 50.0
        return 90.0 - abs(math.log(job.setting["rho"] / peaks[job.contestant]))

    def tried(name: str) -> list[float]:
        jobs = look(study, tmp_path).of("choose", name)
        return list(dict.fromkeys(job.setting["rho"] for job in jobs if job.setting))

    assert tried("SAM") == tried("CR-SAM log") == [0.05, 0.5]
    pretend(study, tmp_path, accuracy)
    assert tried("SAM") == [0.05, 0.5, 5.0]
    assert tried("CR-SAM log") == [0.05, 0.5, 0.005]
    assert "SAM" not in look(study, tmp_path).chosen  # what is beyond has not been run
    pretend(study, tmp_path, accuracy)
    assert tried("SAM") == [0.05, 0.5, 5.0, 50.0]
    assert look(study, tmp_path).chosen["CR-SAM log"] == {"rho": 0.05}
    for _ in range(3):
        pretend(study, tmp_path, accuracy)
    progress = look(study, tmp_path)
    assert progress.chosen["SAM"] == {"rho": 5.0}
    assert progress.is_complete
    assert verdict(progress).at_an_edge == ()
    show_verdict(progress)
    shown = capsys.readouterr().out
    (sam, *_) = [line for line in shown.splitlines() if line.startswith("SAM ")]
    assert sam.split()[-1] == "2.30"  # log 10: from 0.05 to 0.5, which both have tried
    assert "are over 0.05, 0.5, which all have" in shown
    assert len(progress.of("choose", "SAM")) == 2 * 4

    peaks["SAM"] = 1e9  # three more, and no further
    study = small(tmp_path, "study.choose.widen={rho = 3}", "study.choose.seeds=[9]")
    for _ in range(6):
        pretend(study, tmp_path, accuracy)
    assert tried("SAM") == [0.05, 0.5, 5.0, 50.0, 500.0]
    assert verdict(look(study, tmp_path)).at_an_edge == ("SAM: rho = 500.0",)


def test_grids_that_share_no_two_values_have_no_mean(tmp_path: Path, capsys: Any) -> None:
    more = "[study.contestants.SAM.grid]\nrho = [0.5, 0.7]\n"
    study = small(tmp_path, more=more)
    pretend(study, tmp_path, lambda job: 100 * job.setting["rho"] if job.setting else 50.0)
    show_verdict(look(study, tmp_path))
    shown = capsys.readouterr().out
    assert next(line.split() for line in shown.splitlines() if line.startswith("SAM ")) == [
        "SAM", "50.00", "70.00", "←"
    ]  # fmt: skip
    assert "worst" not in shown


def test_the_options_of_a_summary_are_those_that_were_chosen(tmp_path: Path) -> None:
    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 100 - job.setting.get("rho", 0.0))
    progress = look(study, tmp_path)
    for job in progress.jobs:
        if job.result is not None:
            origin = {**json.loads(ORIGIN), "options": dict(job.setting or {})}
            (tmp_path / job.place / "environment.json").write_text(json.dumps(origin))
            (tmp_path / job.place / "metrics.jsonl").write_text("")
    assert progress.chosen["SAM"] == {"rho": 0.05}  # the first of those that were tried
    assert summary(progress, tmp_path)["options"] == progress.chosen


def test_differences_are_paired_and_equal_time_has_its_own(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    study = small(tmp_path)

    def accuracy(job: Job) -> float:
        gain = {"SGD": -1.0, "SAM": 0.0, "CR-SAM log": 0.5}[job.contestant]
        longer = 0.3 if job.stage == "equal-time" else 0.0
        return 80.0 + 10 * job.recipe.seed + gain * (1 + job.recipe.seed) + longer

    for _ in range(2):
        pretend(study, tmp_path, accuracy)
    found = verdict(look(study, tmp_path))
    rows = {row.contestant: row for row in found.rows}
    assert list(rows) == ["SGD", "SAM", "CR-SAM log", "SAM, equal time"]
    assert rows["SAM"].difference is None
    gain = rows["CR-SAM log"].difference
    assert gain is not None
    assert gain.mean == pytest.approx(0.75)
    assert gain.high - gain.mean == pytest.approx(12.7062 * 0.25, rel=1e-4)  # not that of 85 ± 7
    assert rows["SAM, equal time"].difference.mean == pytest.approx(0.3)  # type: ignore[union-attr]
    assert rows["SAM, equal time"].epochs == 3
    assert dict(found.at_equal_time).keys() == {"CR-SAM log"}  # SGD had half the time
    assert dict(found.at_equal_time)["CR-SAM log"].mean == pytest.approx(0.45)
    assert rows["CR-SAM log"].time == pytest.approx(1.5)
    assert rows["SAM, equal time"].time == pytest.approx(1.5)  # as long an epoch, more of them
    assert sum(tried.is_chosen for tried in found.tried) == 2  # of SAM and of CR-SAM, one each
    assert len(found.tried) == 4
    show_verdict(look(study, tmp_path))
    shown = capsys.readouterr().out
    for words in (
        "+0.75",
        "-2.43 to +3.93",
        "At equal time: CR-SAM log against SAM +0.45 (",
        "1.5×",
    ):
        assert words in shown


def test_who_takes_as_long_counts_at_equal_time_and_who_was_meant_does_anyway(
    tmp_path: Path,
) -> None:
    study = small(tmp_path)
    for _ in range(2):
        pretend(study, tmp_path, lambda job: 50.0, seconds_per_epoch=1.0)
    progress = look(study, tmp_path)

    def told(**seconds: float) -> set[str]:
        def timed(job: Job) -> Job:
            assert job.result is not None
            name = "longer" if job.stage == "equal-time" else job.contestant[:3]
            return replace(job, result={**job.result, "seconds_per_epoch": seconds[name]})

        jobs = tuple(timed(job) if job.stage != "choose" else job for job in progress.jobs)
        return {name for name, _ in verdict(replace(progress, jobs=jobs)).at_equal_time}

    last = {"SAM": 1.5, "CR-": 9.0, "longer": 1.0}  # of 2, 2 and 3 epochs
    assert told(SGD=1.2, **last) == {"SGD", "CR-SAM log"}
    assert told(SGD=1.8, **last) == {"SGD", "CR-SAM log"}
    assert told(SGD=1.1, **last) == {"CR-SAM log"}
    assert told(SGD=1.9, **last) == {"CR-SAM log"}


def test_losses_are_paired_too_and_a_run_without_one_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small(tmp_path, "study.seeds=[0, 1, 2]")

    def loss(job: Job) -> float | None:
        if (job.contestant, job.recipe.seed) == ("SGD", 1):
            return None
        gain = {"SGD": 0.2, "SAM": 0.0, "CR-SAM log": -0.001}[job.contestant]
        longer = 0.02 if job.stage == "equal-time" else 0.0
        return 1.0 + 5 * job.recipe.seed + gain * (1 + job.recipe.seed) - longer

    for _ in range(2):
        pretend(study, tmp_path, lambda job: 50.0, loss)
    found = verdict(look(study, tmp_path))
    rows = {row.contestant: row for row in found.rows}
    assert dict(found.loss_at_equal_time)["CR-SAM log"].mean == pytest.approx(0.018)
    assert rows["SAM"].loss == Spread(6.0, 5.0, 3)
    assert rows["SAM"].loss_difference is None
    for name, differences in (("CR-SAM log", [-0.001, -0.002, -0.003]), ("SGD", [0.2, 0.6])):
        gain = vars(rows[name].loss_difference)
        assert gain == pytest.approx(vars(interval(differences)), rel=1e-9)
    assert math.isnan(rows["SGD"].loss.mean)
    show_verdict(look(study, tmp_path))
    shown = " ".join(capsys.readouterr().out.split("Test loss")[1].split())
    assert "SAM 6.0000 CR-SAM log 5.9980 -0.0020 -0.0045 to +0.0005" in shown
    assert "SGD — +0.4000" in shown
    assert (
        "At equal time: CR-SAM log against SAM +0.0180 (+0.0155 to +0.0205) of test loss" in shown
    )


def test_how_flat_models_are_is_told_apart_by_images_and_fits_a_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(show, "console", lambda: Console(width=80))
    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 50.0)
    pretend(study, tmp_path, lambda job: 50.0)
    names = ("gradient_norm", "hessian_trace", "normalized_trace", "top_eigenvalue")
    figures = {"train": 0.07546, "test": 7028.243}
    measures = {f"{name}, {split}": figures[split] for split in figures for name in names}
    progress = look(study, tmp_path)
    jobs = tuple(replace(job, measures=measures) for job in progress.jobs)
    show_verdict(replace(progress, jobs=jobs))
    train, test = capsys.readouterr().out.split("How flat the final models are on ")[1:]
    assert (train.split()[0], test.split()[0]) == ("train", "test")
    for split, figure in ((train, "0.0755"), (test, "7,028")):
        assert "normalized" in split
        (sam,) = [line for line in split.splitlines() if line.startswith("SAM  ")]
        assert sam.split()[1:] == [figure] * 4


def test_without_a_factor_equal_time_follows_the_seconds_of_the_final_runs(tmp_path: Path) -> None:
    study = small(tmp_path, without="factor = 1.5\n")
    pretend(study, tmp_path, lambda job: 50.0)
    assert all(job.setting is None for job in look(study, tmp_path).of("equal-time"))
    pretend(study, tmp_path, lambda job: 50.0)
    assert [job.epochs for job in look(study, tmp_path).of("equal-time")] == [3, 3]  # 2 · 3 s / 2 s


def test_several_may_be_given_time_each_its_own(tmp_path: Path, capsys: Any) -> None:
    both = 'study.equal_time.give=["SAM", "SGD"]'
    study = small(tmp_path, both, "study.equal_time.factor={SAM = 1.5}")
    gains = {"SGD": 0.0, "SAM": 1.0, "CR-SAM log": 1.5}

    def accuracy(job: Job) -> float:
        longer = 2.0 if job.stage == "equal-time" else 0.0
        return 50.0 + 10 * job.recipe.seed + gains[job.contestant] + longer

    pretend(study, tmp_path, accuracy)
    waiting = look(study, tmp_path).of("equal-time")
    assert [(job.contestant, job.setting is None) for job in waiting] == [
        ("SAM", False), ("SGD", True)
    ] * 2  # fmt: skip
    pretend(study, tmp_path, accuracy)
    for job in look(study, tmp_path).pending:
        (tmp_path / job.place).mkdir(parents=True)
        RunFolder(tmp_path / job.place).start(job.recipe, {}, fresh=False)
    pretend(study, tmp_path, accuracy)
    progress = look(study, tmp_path)
    assert progress.is_complete
    assert [job.epochs for job in progress.of("equal-time")] == [3, 6, 3, 6]  # 2 · 3 s / 1 s
    found = verdict(progress)
    assert [row.contestant for row in found.rows][3:] == ["SAM, equal time", "SGD, equal time"]
    assert {name: value.mean for name, value in found.at_equal_time} == pytest.approx({
        "CR-SAM log against SAM": -1.5,
        "SGD, equal time against SAM": -1.0,
        "CR-SAM log against SGD": -0.5,
    })  # fmt: skip
    show_verdict(progress)
    assert "At equal time: CR-SAM log against SGD -0.50" in capsys.readouterr().out


def test_a_factor_that_was_measured_holds_when_seeds_are_added(tmp_path: Path) -> None:
    study = small(tmp_path, without="factor = 1.5\n")
    for _ in range(2):
        pretend(study, tmp_path, lambda job: 50.0)
    for job in look(study, tmp_path).of("equal-time"):
        (tmp_path / job.place).mkdir(parents=True)
        RunFolder(tmp_path / job.place).start(job.recipe, {}, fresh=False)
    pretend(study, tmp_path, lambda job: 50.0)
    more = small(tmp_path, "study.seeds=[0, 1, 2]", without="factor = 1.5\n")
    pretend(more, tmp_path, lambda job: 50.0, seconds_per_epoch=0.5)
    assert [job.epochs for job in look(more, tmp_path).of("equal-time")] == [3, 3, 3]


def test_an_epoch_of_part_of_the_set_counts_as_part(tmp_path: Path) -> None:
    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 50.0)
    progress = look(study, tmp_path)
    assert per_epoch(progress.jobs, "SAM") == pytest.approx(2.0 / 0.8)
    final = progress.of("final", "SAM")[0]
    assert progress.seconds(final) == pytest.approx(2 * 2.0 / 0.8)


def test_the_plan_tells_runs_and_time(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    study = small(tmp_path, "study.contestants.SAM.seconds_per_epoch=60")
    show_plan(look(study, tmp_path))
    shown = capsys.readouterr().out
    assert "12 runs" in shown
    assert "what is not known yet" in shown
    assert "0:48" in shown  # an epoch of four fifths of the set
    assert "to be chosen" in shown


def test_a_plan_of_which_nothing_is_known_says_so(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    show_plan(look(small(tmp_path, "study.seeds=[]"), tmp_path))
    shown = capsys.readouterr().out
    assert "4 runs; how long they take is known once the first are done." in shown
    assert "equal-time" not in shown


def test_a_run_starts_only_if_it_fits_or_fits_nowhere() -> None:
    clock = Clock(1.0)
    assert clock.allows(30.0, begun=False)
    clock.began -= 40
    assert not clock.allows(30.0, begun=False)
    assert clock.allows(30.0, begun=True)
    assert clock.allows(90.0, begun=False)  # longer than any budget: in parts, then
    assert clock.allows(None, begun=False)
    clock.began -= 40
    assert clock.is_up
    assert not clock.allows(None, begun=True)
    assert Clock(None).allows(1e9, begun=False)


ORIGIN = '{"versions": {"torch": "2"}, "hardware": "x", "command": "crsam study small"}'


def test_curves_have_an_entry_an_epoch_and_fewer_if_the_file_grows_too_long(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "train", "epoch": e - 1 + part, "step": 4 * e - 4 + steps, "loss": loss / e,
         "accuracy": None if (e, part) == (4, 0.75) else 12.345678}
        for e in range(1, 6)
        for part, steps, loss in ((0.75, 3, 2.0), (1.0, 4, 1.0))
    ]  # fmt: skip
    del lines[1]["accuracy"]
    lines += [{"kind": "validation", "epoch": e, "loss": 2.0, "accuracy": 50.0} for e in (2, 5)]
    found = curves(lines)
    assert found["epoch"] == [1, 2, 3, 4, 5]
    assert found["train_loss"] == [1.75, 0.875, 0.5833, 0.4375, 0.35]  # of three steps and one
    assert found["train_accuracy"] == [12.35, 12.35, 12.35, None, 12.35]
    assert found["validation_accuracy"] == [None, 50.0, None, None, 50.0]
    assert curves(lines, every=2)["epoch"] == [2, 4, 5]

    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 50.0)
    long = [
        {"kind": "train", "epoch": float(e), "step": e, "loss": 1.234567, "accuracy": 12.345}
        for e in range(1, 3000)
    ]
    for job in (progress := look(study, tmp_path)).jobs:
        if job.result is not None:
            place = tmp_path / job.place
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in long))
            (place / "environment.json").write_text(ORIGIN)
    write_summary(progress, tmp_path, tmp_path / "deep/er/study.json")
    assert (tmp_path / "deep/er/study.json").stat().st_size < LIMIT
    written = json.loads((tmp_path / "deep/er/study.json").read_text())
    assert written["runs"][0]["epochs"]["epoch"][-1] == 2999
    assert written["commands"] == ["crsam study small"]


def test_a_summary_has_what_runs_were_judged_on_since(tmp_path: Path) -> None:
    study = small(tmp_path)
    pretend(study, tmp_path, lambda job: 50.0, data_wait=0.0123)
    progress = look(study, tmp_path)
    first, *others = (tmp_path / job.place for job in progress.jobs if job.result is not None)
    for place in (first, *others):
        (place / "environment.json").write_text(ORIGIN)
        (place / "metrics.jsonl").write_text("")
    kept = {
        "num_images": 7,
        "num_classes": 2,
        "step": 12,
        "mean_accuracy": None,
        "mce": None,
        "relative_to": "AlexNet",
        "missing": ["fog/3"],
        "of_those_there": {"mean_accuracy": 33.33},
        "commit": "abc",
        "hardware": "a CPU",
    }
    sets = {
        "imagenet_c": {**kept, "accuracy": {"fog": [100 / 3, None]}, "root": "/elsewhere"},
        "imagenet_r": {"num_images": 5, "accuracy": 200 / 3, "command": "crsam"},
    }
    (first / "robustness.json").write_text(json.dumps(sets))
    (others[0] / "robustness.json").write_text("{")  # which must not end a study
    write_summary(progress, tmp_path, tmp_path / "study.json")
    judged, *rest = json.loads((tmp_path / "study.json").read_text())["runs"]
    assert judged["data_wait"] == 0.0123
    assert judged["robustness"] == {
        "imagenet_c": {**kept, "accuracy": {"fog": [33.33, None]}},
        "imagenet_r": {"num_images": 5, "accuracy": 66.67},
    }
    assert not any("robustness" in run for run in rest)
