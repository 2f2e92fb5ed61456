"""Sweeps: chosen on validation images, resumed, shared by workers, broken off when hopeless."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crsam.errors import UserError
from crsam.lab.experiment import sweep as sweeping
from crsam.lab.experiment.locks import is_held
from crsam.lab.experiment.ranges import Sweep
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.sweep import is_whole, ranges_of, sweep
from crsam.lab.experiment.tables import show_trials
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.train.interrupt import Stopped
from lab.experiment.runs import tiny

HERE = Path(__file__).parent
RANGES = (
    "method=sam",
    "log.evaluate=1",
    "sweep.ranges.optimizer.lr={low=0.01, high=0.5, log=true}",
    "sweep.ranges.methods.sam.rho={low=0.01, high=0.5}",
    "sweep.ranges.methods.crsam.form=['log', 'linear']",
)


@pytest.fixture(scope="module", autouse=True)
def _optuna() -> None:
    pytest.importorskip("optuna")


def test_ranges_are_read_checked_and_written_again() -> None:
    recipe = tiny(*RANGES)
    assert recipe.sweep.ranges["optimizer.lr"] == {"low": 0.01, "high": 0.5, "log": True}
    assert list(ranges_of(recipe)) == ["optimizer.lr", "methods.sam.rho"]
    assert list(ranges_of(recipe.with_method("crsam"))) == ["optimizer.lr", "methods.crsam.form"]
    assert "sweep" not in to_toml(Recipe())
    assert "[sweep]" in to_toml(recipe)


def test_a_recipe_with_ranges_survives_its_own_toml(tmp_path: Path) -> None:
    file = tmp_path / "swept.toml"
    file.write_text(to_toml(tiny(*RANGES)))
    assert load_recipe(file) == tiny(*RANGES)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sweep.ranges.optimizer.rl=[0.1]", "sweep.ranges: unknown key 'optimizer.rl'"),
        ("sweep.ranges.train.epochs={low=0, high=3}", "train.epochs must be at least 1"),
        ("sweep.ranges.train.epochs={low=3, high=3}", "high must be above 3"),
        ("sweep.ranges.train.epochs={low=3}", "high must be given"),
        ("sweep.ranges.train.epochs=3", "a list of choices"),
        ("sweep.ranges.train.epochs=[]", "a list of choices"),
        ("sweep.ranges.optimizer.lr={low=0.0, high=1.0, log=true}", "above 0, for log"),
        ("sweep.ranges.optimizer.lr={low=0.1, high=1.0, stop=0.1}", "unknown key"),
        ("sweep.ranges.methods.sam.rho={low='a', high=1.0}", "must be a number"),
        ("sweep.trials=0", "at least 1"),
        ("sweep.trails=3", "did you mean sweep.trials?"),
    ],
)
def test_mistakes_in_ranges_are_told_when_the_recipe_is_read(override: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        tiny(override)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_whole_numbers_are_drawn_only_where_nothing_else_is_allowed() -> None:
    assert is_whole(tiny(), "model.width", {"low": 4, "high": 16})
    assert not is_whole(tiny(), "methods.crsam.rho", {"low": 0, "high": 1})
    assert Sweep({"a.b": [1, 2]}).ranges == {"a.b": (1, 2)}


def test_a_sweep_chooses_on_validation_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sweep(tiny(*RANGES), tmp_path, trials=2)
    assert [t.state for t in first] == ["complete"] * 2
    stamps = {t.folder: (t.folder / "result.json").stat().st_mtime_ns for t in first}
    found = sweep(tiny(*RANGES), tmp_path, trials=4)
    assert len(found) == 4
    assert all((f / "result.json").stat().st_mtime_ns == s for f, s in stamps.items())
    accuracy = [t.accuracy for t in found]
    assert accuracy == sorted(accuracy, reverse=True)  # type: ignore[type-var]
    assert len({t.values["optimizer.lr"] for t in found}) == 4
    for trial in found:
        result = json.loads((trial.folder / "result.json").read_text())
        recipe = load_recipe(trial.folder / "recipe.toml")
        assert result["test_accuracy"] is None
        assert result["validation_accuracy"] == trial.accuracy
        assert recipe.data.validation == 0.1
        assert recipe.optimizer.options["lr"] == trial.values["optimizer.lr"]
        assert recipe.methods["sam"]["rho"] == trial.values["methods.sam.rho"]
        assert not recipe.sweep.ranges
    best = load_recipe(tmp_path / "best.toml")
    assert best.optimizer.options["lr"] == found[0].values["optimizer.lr"]
    assert (best.data.validation, best.log.test) == (0.0, True)
    show_trials(found, "four")
    assert f"{found[0].accuracy:.2f}" in capsys.readouterr().out


def test_another_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    sweep(tiny(*RANGES), tmp_path, trials=1)
    with pytest.raises(UserError, match=r"another sweep \(train.epochs: 3 there, 2 here\)"):
        sweep(tiny(*RANGES, "train.epochs=2"), tmp_path, trials=1)
    with pytest.raises(UserError, match="nothing to sweep for the method 'sam'"):
        sweep(tiny("method=sam"), tmp_path / "other")


def test_hopeless_trials_are_broken_off(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = tiny(*RANGES, "train.epochs=8")
    bad = iter([False] * 5 + [True] * 10)
    real = sweeping.recipe_of

    def recipe_of(*args: Any) -> Recipe:
        good = {"optimizer.lr": 0.2, "methods.sam.rho": 0.01}
        values = {"optimizer.lr": 1e-9, "methods.sam.rho": 0.01} if next(bad) else good
        return real(args[0], values)

    monkeypatch.setattr(sweeping, "recipe_of", recipe_of)
    found = sweep(recipe, tmp_path, trials=6)
    assert [t.state for t in found] == ["complete"] * 5 + ["pruned"]
    assert 1 <= found[-1].epochs < 8
    assert not (found[-1].folder / "result.json").exists()
    assert not list(found[-1].folder.glob("checkpoint*.pt"))


def test_a_stopped_trial_goes_on_in_its_folder(tmp_path: Path, monkeypatch: Any) -> None:
    real = sweeping.run

    def stops(*args: Any, **options: Any) -> Any:
        raise Stopped

    sweep(tiny(*RANGES), tmp_path, trials=1)
    monkeypatch.setattr(sweeping, "run", stops)
    with pytest.raises(Stopped):
        sweep(tiny(*RANGES), tmp_path, trials=2)
    monkeypatch.setattr(sweeping, "run", real)
    found = sweep(tiny(*RANGES), tmp_path, trials=2)
    assert sorted(t.folder.name for t in found) == ["trial0", "trial1"]
    assert all(t.state == "complete" for t in found)
    assert not list(tmp_path.glob(".worker*"))


def worker(folder: Path, trials: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "programs/sweeper.py"), str(folder), str(trials), *more]
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True
    )


def test_two_workers_share_a_sweep_and_a_killed_ones_trial_is_taken_over(tmp_path: Path) -> None:
    killed = worker(tmp_path, 5, "kill")
    _, said = killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL, said
    assert len(list(tmp_path.glob("trial*/result.json"))) == 2
    assert not (tmp_path / "trial2/result.json").exists()
    both = [worker(tmp_path, 5) for _ in range(2)]
    for each in both:
        _, said = each.communicate(timeout=300)
        assert each.returncode == 0, said
    found = sweep(tiny(*RANGES), tmp_path, trials=5)
    assert len(found) == 5
    assert {"trial0", "trial1", "trial2"} <= {t.folder.name for t in found}
    assert len({t.folder for t in found}) == len(found)
    assert len({t.values["optimizer.lr"] for t in found}) == len(found)
    assert all(t.state in ("complete", "pruned") for t in found)


def test_trials_are_counted_and_the_best_is_written_by_one_worker_at_a_time(
    tmp_path: Path, monkeypatch: Any
) -> None:
    alone: list[bool] = []

    def noted(function: Any) -> Any:
        def seen(*args: Any) -> Any:
            alone.append(is_held(tmp_path / ".lock"))
            return function(*args)

        return seen

    study = sys.modules["optuna"].study.Study
    monkeypatch.setattr(study, "ask", noted(study.ask))
    monkeypatch.setattr(sweeping, "_num_begun", noted(sweeping._num_begun))
    sweep(tiny(*RANGES), tmp_path, trials=1)
    assert alone[1:] == [True, True, True]  # counted, asked, counted; the first is for the bar
    alone.clear()
    monkeypatch.setattr(sweeping, "_num_begun", lambda *_: 1)  # all are there
    monkeypatch.setattr(sweeping, "trials_of", noted(sweeping.trials_of))
    monkeypatch.setattr(sweeping._files, "write", noted(sweeping._files.write))
    sweep(tiny(*RANGES), tmp_path, trials=1)
    assert alone == [True, True]


def test_without_optuna_one_line_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="pip install optuna"):
        sweep(tiny(*RANGES), tmp_path)
