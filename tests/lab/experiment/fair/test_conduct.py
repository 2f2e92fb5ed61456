"""A study from beginning to end: resumed, interrupted, out of time."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crsam.errors import UserError
from crsam.lab.experiment.fair import conduct as conducting
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.jobs import look
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stopped
from lab.experiment.fair.studies import small


def stamps(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("result.json")}


def test_a_study_runs_to_its_end_measures_and_is_not_repeated(tmp_path: Path) -> None:
    more = '[study.measure]\nmetrics = ["loss", "gradient_norm"]\nsamples = 64\n'
    study = small(tmp_path, more=more)
    runs, summary = tmp_path / "runs", tmp_path / "small.json"
    progress = conduct(study, runs, summary=summary)
    assert progress.is_complete
    results = stamps(runs)
    assert len(results) == 4 + 3 * 2 + 2
    assert (runs / "choose/cr-sam-log/rho=0.05/seed7/result.json") in results
    choosing = json.loads((runs / "choose/sam/rho=0.5/seed7/result.json").read_text())
    assert choosing["test_accuracy"] is None
    assert choosing["validation_accuracy"] > 0
    kept = {p.parent.relative_to(runs).parts[0] for p in runs.rglob("checkpoint*.pt")}
    assert kept == {"final", "equal-time"}

    written = json.loads(summary.read_text(), parse_constant=pytest.fail)
    assert summary.read_text() == (runs / "study.json").read_text()
    assert written["is_complete"]
    assert len(written["runs"]) == 12
    final = [run for run in written["runs"] if run["stage"] == "final"]
    assert set(final[0]["measures"]) == {"loss, train", "gradient_norm, train", "loss, test",
                                         "gradient_norm, test"}  # fmt: skip
    assert all(("measures" in run) == (run["stage"] != "choose") for run in written["runs"])
    assert final[0]["epochs"]["epoch"] == [1, 2]
    assert {"commit", "hardware", "torch", "seed", "changes"} <= set(final[0])
    sam = next(run for run in final if run["contestant"] == "SAM")
    assert sam["changes"]["methods.sam.rho"] == written["chosen"]["SAM"]["rho"]
    assert written["options"]["SGD"] == {}
    assert written["options"]["SAM"]["rho"] == written["chosen"]["SAM"]["rho"]
    assert written["options"]["CR-SAM log"]["trust"] == 0.1  # not said by the study

    conduct(study, runs)
    assert stamps(runs) == results


def test_a_study_out_of_time_goes_on_later(tmp_path: Path, monkeypatch: Any) -> None:
    study = small(tmp_path)
    now, real = [0.0], conducting.run

    def half_a_minute(*args: Any, **options: Any) -> Any:
        now[0] += 30
        return real(*args, **options)

    monkeypatch.setattr(conducting, "run", half_a_minute)
    monkeypatch.setattr(conducting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    first = conduct(study, tmp_path / "runs", minutes=1)
    done = stamps(tmp_path / "runs")
    assert not first.is_complete
    assert len(done) == 2
    assert (tmp_path / "runs/study.json").exists()
    last = conduct(study, tmp_path / "runs")
    assert last.is_complete
    assert done.items() <= stamps(tmp_path / "runs").items()


def test_time_that_ends_within_a_run_leaves_a_checkpoint(tmp_path: Path) -> None:
    study = small(tmp_path, "train.epochs=2000", "study.choose.epochs=2000")
    began = time.monotonic()
    progress = conduct(study, tmp_path / "runs", minutes=1.5 / 60)
    assert time.monotonic() - began < 30
    assert not any(job.result for job in progress.jobs)
    assert len(list((tmp_path / "runs").rglob("checkpoint.pt"))) == 1


def test_a_run_that_does_not_fit_gives_way_to_one_that_does(tmp_path: Path) -> None:
    study = small(tmp_path, "study.contestants.SAM.seconds_per_epoch=50")
    clock = conducting.Clock(1.0)
    clock.began -= 25  # 35 s are left of 60; a run of SAM to choose by takes 40
    with conducting._turn(look(study, tmp_path), tmp_path, clock, World()) as (job, _):
        assert job is not None
        assert (job.stage, job.contestant) == ("choose", "CR-SAM log")


def test_ctrl_c_stops_a_study_between_runs(tmp_path: Path, monkeypatch: Any) -> None:
    real = conducting.run

    def asks(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(conducting, "run", asks)
    with pytest.raises(Stopped):
        conduct(small(tmp_path), tmp_path / "runs", minutes=10)
    assert len(stamps(tmp_path / "runs")) == 1
    assert len(json.loads((tmp_path / "runs/study.json").read_text())["runs"]) == 1


def test_a_final_run_killed_before_it_was_measured_is_measured_later(tmp_path: Path) -> None:
    plain, runs = small(tmp_path), tmp_path / "runs"
    conduct(plain, runs)
    measured = small(tmp_path, more='[study.measure]\nmetrics = ["loss"]\nsplits = ["test"]\n')
    assert len(look(measured, runs).pending) == 8
    results = stamps(runs)
    assert conduct(measured, runs).is_complete
    assert stamps(runs) == results
    assert len(list(runs.rglob("measures-test.json"))) == 8


def test_a_final_run_that_diverged_is_not_measured_and_no_end_of_the_study(tmp_path: Path) -> None:
    more = '[study.measure]\nmetrics = ["loss"]\nsplits = ["test"]\n'
    words = ["study.seeds=[0]", 'study.contestants.SGD.options={"optimizer.lr" = 1e9}']
    progress = conduct(small(tmp_path, *words, more=more), tmp_path / "runs")
    assert progress.is_complete
    sgd, sam, _ = progress.of("final")
    assert sgd.result is not None
    assert sgd.result["diverged_at"] is not None
    assert sgd.measures is None
    assert sam.measures is not None


def test_results_of_another_recipe_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    study = small(tmp_path, "study.seeds=[0]")
    conduct(study, tmp_path / "out")
    other = small(tmp_path, "study.seeds=[0]", "optimizer.lr=0.001")
    with pytest.raises(UserError, match=r"holds a run of another recipe \(optimizer.lr"):
        conduct(other, tmp_path / "out")
    assert conduct(other, tmp_path / "out", fresh=True).is_complete


def test_a_metric_asked_for_later_is_not_done(tmp_path: Path) -> None:
    asked = '[study.measure]\nmetrics = ["{}"]\nsamples = 50\n'
    study = small(tmp_path, "study.seeds=[0]", more=asked.format("loss"))
    assert conduct(study, tmp_path / "out").is_complete
    more = small(tmp_path, "study.seeds=[0]", more=asked.format('loss", "gradient_norm'))
    assert not look(more, tmp_path / "out").is_complete
