"""Looks for good values with Optuna: every trial a run folder, judged on validation images."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crsam import _files
from crsam.errors import UserError
from crsam.lab._same import has_no_part
from crsam.lab.data.batches import derive
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.layers import changed
from crsam.lab.experiment.locks import alone, claimed, is_held
from crsam.lab.experiment.occupied import check_free
from crsam.lab.experiment.ranges import Sweep
from crsam.lab.experiment.recipe import Recipe, differences
from crsam.lab.experiment.restore import check_moved
from crsam.lab.experiment.run import run
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import Score
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.progress import bar, on_terminal, say

VALIDATION = 0.1
"""Share that is held out where the recipe holds out nothing."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    number: int
    values: Mapping[str, Any]
    """By key."""
    accuracy: float | None
    """On the validation images, of the last epoch that was run; None: there was none."""
    epochs: int
    state: str
    """``"complete"``, ``"pruned"`` or ``"running"``."""
    folder: Path


def sweep(
    recipe: Recipe, folder: str | Path, world: World | None = None, *, trials: int | None = None
) -> list[Trial]:
    """Tries values out of the recipe's ``[sweep]`` until enough trials have been made.

    Any number of processes may sweep into one folder at a time. A trial whose process was killed
    or stopped goes on where it was when the next one starts.

    Args:
        recipe: With ranges. Its seed is that of every trial; its test set is never read.
        folder: For ``trials.log``, the runs, and ``best.toml``.
        world: Where to compute; one process each.
        trials: How many, over all processes; None: as the recipe says.

    Returns:
        All trials, the best one first.

    Raises:
        UserError: If there are no ranges, if the folder holds another sweep or somebody else's
            files, or if Optuna is missing.
        Stopped: If the user asked to.
    """
    optuna, world, place = _optuna(), world or World(), Path(folder)
    if world.size > 1:
        raise UserError("a sweep has no use for torchrun: start several crsam sweep instead")
    ranges = ranges_of(recipe)
    check_free(place)
    place.mkdir(parents=True, exist_ok=True)
    wanted = recipe.sweep.trials if trials is None else trials
    with _working(place) as worker, stoppable() as stop:
        with alone(place / ".lock"):
            study = _study(optuna, recipe, place)
            _revive(optuna, study, place)
        with bar("trials", wanted, done=_num_begun(optuna, study)) as advance:
            while True:
                with alone(place / ".lock"):  # so that no two begin the last one
                    if _num_begun(optuna, study) >= wanted:
                        break
                    if stop.asked:
                        raise Stopped
                    trial = study.ask()
                    trial.set_user_attr("worker", worker)
                note = _try(optuna, study, trial, recipe, ranges, place, world)
                advance(note=note)
                if not on_terminal():
                    say(note)
    with alone(place / ".lock"):  # another that ends now may know of one trial less, or of one more
        found = trials_of(optuna, study, place)
        if found and found[0].accuracy is not None:
            best = changed(bare(recipe), found[0].values)
            best = replace(best, data=replace(best.data, validation=0.0))  # nothing left to choose
            _files.write(place / "best.toml", to_toml(best).encode())
    return found


def ranges_of(recipe: Recipe) -> dict[str, Any]:
    """The ranges that the recipe's method has a use for.

    Raises:
        UserError: If there are none.
    """
    own = f"methods.{recipe.method}."
    found = {
        key: given
        for key, given in recipe.sweep.ranges.items()
        if not key.startswith("methods.") or key.startswith(own)
    }
    if not found:
        raise UserError(
            f"there is nothing to sweep for the method {recipe.method!r}: the recipe needs ranges, "
            f"such as [sweep.ranges] {own}rho = {{low = 0.01, high = 1.0, log = true}}"
        )
    return found


def bare(recipe: Recipe) -> Recipe:
    """The recipe without its ranges."""
    return replace(recipe, sweep=Sweep())


def recipe_of(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe of a trial."""
    held_out = recipe.data.validation or VALIDATION
    return changed(bare(recipe), {**values, "data.validation": held_out, "log.test": False})


def suggested(trial: Any, recipe: Recipe, key: str, given: Any) -> Any:
    """A value for one key, as Optuna would have it."""
    if not isinstance(given, Mapping):
        return trial.suggest_categorical(key, list(given))
    low, high, log, step = (given.get(name) for name in ("low", "high", "log", "step"))
    if is_whole(recipe, key, given):
        return trial.suggest_int(key, low, high, step=step or 1, log=bool(log))
    return trial.suggest_float(key, low, high, step=step, log=bool(log))


def is_whole(recipe: Recipe, key: str, given: Mapping[str, Any]) -> bool:
    """Whether a key takes whole numbers alone: ``{low = 0, high = 1}`` says it of none."""
    if any(isinstance(given.get(name), float) for name in ("low", "high", "step")):
        return False
    try:
        changed(bare(recipe), {key: given["low"] + 0.5})
    except UserError:
        return True
    return False


def trials_of(optuna: Any, study: Any, place: Path) -> list[Trial]:
    """All trials, completed ones first, the better the earlier."""
    states = optuna.trial.TrialState
    names = {states.COMPLETE: "complete", states.PRUNED: "pruned", states.RUNNING: "running"}
    found = []
    for each in study.trials:
        if each.state in names:
            last = max(each.intermediate_values, default=0)
            value = each.intermediate_values.get(last) if each.value is None else each.value
            folder = place / _name(each)
            found.append(Trial(each.number, each.params, value, last, names[each.state], folder))
    order = list(names.values())
    return sorted(found, key=lambda t: (order.index(t.state), -(t.accuracy or 0.0), t.number))


def _try(
    optuna: Any,
    study: Any,
    trial: Any,
    recipe: Recipe,
    ranges: Mapping[str, Any],
    place: Path,
    world: World,
) -> str:
    """Runs one trial to its end, and says how it went."""
    values = {key: suggested(trial, recipe, key, given) for key, given in ranges.items()}
    folder = RunFolder(place / _name(trial))
    seen: set[int] = set()

    def watch(epoch: int, score: Score) -> None:
        if epoch not in seen:
            seen.add(epoch)
            trial.report(score.accuracy, epoch)
        if recipe.sweep.prune and trial.should_prune():
            raise optuna.TrialPruned

    for line in folder.metrics() if folder.metrics_file.exists() else ():
        if line["kind"] == "validation":  # of a run that was broken off
            seen.add(line["epoch"])
            trial.report(line["accuracy"], line["epoch"])
    label = f"trial {trial.number}"
    try:
        result = run(recipe_of(recipe, values), folder.path, world, label=label, lines=False,
                     watch=watch)  # fmt: skip
    except optuna.TrialPruned:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        folder.remove_checkpoints()
        return f"{label}: pruned after {max(seen)} epochs"
    study.tell(trial, result["validation_accuracy"])
    return f"{label}: validation accuracy {result['validation_accuracy']:.2f} %"


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise UserError("crsam sweep needs Optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _study(optuna: Any, recipe: Recipe, place: Path) -> Any:
    """The sweep of this folder, whoever began it."""
    backend = optuna.storages.journal.JournalFileBackend(str(place / "trials.log"))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(
        storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
    )
    begun = place / "sweep.toml"
    if begun.exists():
        there = load_recipe(begun)
        other = [line for line in differences(there, recipe) if not _is_free(line)]
        if other:
            raise UserError(f"{place} holds another sweep ({other[0]}): give another --out")
        for each in study.trials:
            trial = RunFolder(place / _name(each))
            if trial.recipe_file.is_file():
                check_moved(trial, recipe)
    else:
        _files.write(begun, to_toml(recipe).encode())
    # Workers must not all draw the same: each seeds with how many trials it finds.
    study.sampler = optuna.samplers.TPESampler(
        seed=derive(recipe.seed, "sweep", len(study.trials)) % 2**32
    )
    epochs = recipe.train.epochs
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 5)
    return study


def _is_free(difference: str) -> bool:
    """Whether a sweep may go on in spite of it: its ranges must stay, the number of trials not."""
    key = difference.partition(":")[0]
    if key.startswith("sweep."):
        return key.startswith("sweep.t")
    return has_no_part(key, "log.tensorboard")


def _revive(optuna: Any, study: Any, place: Path) -> None:
    """Puts trials whose process is gone up for the next one, which goes on in their folder."""
    states = optuna.trial.TrialState
    for each in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        worker = each.user_attrs.get("worker")
        if worker is not None and not is_held(place / f".{worker}"):
            study.tell(each.number, state=states.FAIL)
            study.enqueue_trial(each.params, user_attrs={"folder": _name(each)})


def _num_begun(optuna: Any, study: Any) -> int:
    """Trials that are done or at work; those that wait for someone to go on are neither."""
    states = optuna.trial.TrialState
    begun = (states.COMPLETE, states.PRUNED, states.RUNNING)
    return len(study.get_trials(deepcopy=False, states=begun))


def _name(trial: Any) -> str:
    """The folder of a trial; one that goes on has that of the trial it was."""
    return str(trial.user_attrs.get("folder", f"trial{trial.number}"))


@contextmanager
def _working(place: Path) -> Iterator[str]:
    """A name that is held while this process works under it."""
    name = f"worker-{uuid.uuid4().hex[:12]}"
    with claimed(place / f".{name}"):
        try:
            yield name
        finally:
            (place / f".{name}").unlink(missing_ok=True)
