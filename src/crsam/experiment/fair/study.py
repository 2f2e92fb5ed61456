"""A study: a recipe with a ``[study]`` table that says who competes, and on what terms."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_type_hints

from crsam.errors import UserError, unknown
from crsam.experiment.layers import changed
from crsam.experiment.measure import check_metrics
from crsam.experiment.options import accepted
from crsam.experiment.recipe import Recipe, flat
from crsam.experiment.toml import STUDIES, read_layers
from crsam.experiment.values import RecipeError, Table, fitted, require, unknown_key


@dataclass(frozen=True)
class Contestant:
    """A method with its options, under a name of its own."""

    method: str
    """One of `crsam.methods`, or the base optimizer."""
    options: Mapping[str, Any] = field(default_factory=Table)
    """On top of the recipe's ``[methods.…]``."""
    grid: Mapping[str, Any] = field(default_factory=Table)
    """Values to choose from, beside the grid that all share."""
    tuned: bool = True
    """False: has no part in the choosing, and competes as its options say."""
    seconds_per_epoch: float | None = None
    """For the estimate, until a run has shown it."""


@dataclass(frozen=True)
class Choose:
    """How everything is chosen: on images held out of the training set."""

    grid: Mapping[str, Any] = field(default_factory=Table)
    """Values that all may choose from: ``rho`` for whoever has one, ``optimizer.lr`` for all."""
    validation: float = 0.1
    """Share of the training set that is held out."""
    epochs: int | None = None
    """Of a run to choose by; None: as many as in the end."""
    seeds: tuple[int, ...] = (0,)
    """The best mean over them is chosen."""


@dataclass(frozen=True)
class EqualTime:
    """One contestant once more, with as many epochs as take another one's time."""

    give: str
    """Who gets more epochs."""
    of: str
    """Whose time."""
    factor: float | None = None
    """How many times the epochs; None: as the final runs show."""


@dataclass(frozen=True)
class Measured:
    """What is measured of every final model."""

    metrics: tuple[str, ...]
    """Names that ``crsam list metrics`` shows."""
    splits: tuple[str, ...] = ("train", "test")
    """Of which images."""
    samples: int = 2048
    """How many of them."""
    num_probes: int = 50
    """Random vectors of a trace."""


Kept = Literal["none", "final", "all"]


@dataclass(frozen=True)
class Study:
    """All that decides what a study does."""

    name: str
    recipe: Recipe
    """What all have in common."""
    contestants: Mapping[str, Contestant]
    """By name, in the order of the table."""
    reference: str
    """The one that the others are compared with."""
    seeds: tuple[int, ...] = ()
    """Of the final runs, the same for all; none: the study ends when all is chosen."""
    choose: Choose | None = None
    equal_time: EqualTime | None = None
    measure: Measured | None = None
    overhead_seconds: float = 0.0
    """Of a run beside its epochs, for the estimate."""
    checkpoints: Kept = "final"
    """Which of the finished runs keep theirs."""

    def settings(self, name: str) -> list[Table]:
        """What a contestant may choose from; a single empty one where there is no choice."""
        one = self.contestants[name]
        if self.choose is None or not one.tuned:
            return [Table()]
        takes = _options_of(self.recipe, one.method)
        shared = {k: v for k, v in self.choose.grid.items() if "." in k or k in takes}
        grid = {**shared, **one.grid}
        return [Table(dict(zip(grid, values))) for values in product(*grid.values())]

    def recipe_of(
        self,
        name: str,
        setting: Mapping[str, Any],
        seed: int,
        also: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """The recipe of a final run.

        Args:
            name: Of the contestant.
            setting: What it has chosen.
            seed: Of the run.
            also: Other values, by their dotted keys.
        """
        one = self.contestants[name]
        method = self.recipe.with_method(one.method).method
        given = {**one.options, **setting}
        values = {k if "." in k else f"methods.{method}.{k}": v for k, v in given.items()}
        values |= {"method": method, "seed": seed, **(also or {})}
        return _changed(self.recipe, Table(values))

    def recipe_to_choose(self, name: str, setting: Mapping[str, Any], seed: int) -> Recipe:
        """The same, trained on less of the training set, and judged on the rest of it."""
        assert self.choose is not None
        epochs = self.choose.epochs or self.recipe.train.epochs
        values = {
            "data.validation": self.choose.validation,
            "train.epochs": epochs,
            "log.test": False,
            "measure.metrics": (),
        }
        return self.recipe_of(name, setting, seed, values)


def load_study(source: str | Path, overrides: Sequence[str] = ()) -> Study:
    """A study out of a file or by the name of a shipped one.

    Args:
        source: Such as ``"digits"`` or ``"mine.toml"``: a recipe with a ``[study]`` table.
        overrides: Of the recipe or of the study, such as ``"train.epochs=10"`` or
            ``"study.seeds=[0, 1]"``.

    Raises:
        UserError: If something in it is not known, not allowed or does not fit together.

    Example:
        >>> study = load_study("digits")
        >>> list(study.contestants), study.reference
        (['SGD', 'SAM', 'CR-SAM log', 'CR-SAM linear'], 'SAM')
    """
    layers = read_layers(source, overrides, also=STUDIES)
    table = layers.table.pop("study", None)
    if not isinstance(table, dict):
        raise UserError(f"{source} is no study: it has no [study] table")
    try:
        return _study(Path(source).stem, layers.recipe(), table)
    except RecipeError as error:
        raise UserError(f"{source}: {error}") from None


def _study(name: str, recipe: Recipe, table: dict[str, Any]) -> Study:
    inner = {"choose": Choose, "equal_time": EqualTime, "measure": Measured}
    plain: dict[str, Any] = {
        "seeds": tuple[int, ...],
        "reference": str,
        "overhead_seconds": float,
        "checkpoints": Kept,
    }
    _refuse_unknown("study", table, ["contestants", *plain, *inner])
    given = table.get("contestants")
    require(isinstance(given, dict) and bool(given), "study.contestants", given, "a table of them")
    assert isinstance(given, dict)
    parts: dict[str, Any] = {
        key: _section(f"study.{key}", table[key], kind) for key, kind in inner.items()
        if key in table
    }  # fmt: skip
    parts |= {
        key: fitted(f"study.{key}", table[key], t) for key, t in plain.items() if key in table
    }
    contestants = {
        each: _section(
            f"study.contestants.{each}", {"method": each, **_table_of(each, one)}, Contestant
        )
        for each, one in given.items()
    }
    parts.setdefault("reference", next(iter(contestants)))
    study = Study(name=name, recipe=recipe, contestants=contestants, **parts)
    _check(study)
    return study


def _table_of(name: str, value: Any) -> dict[str, Any]:
    require(isinstance(value, dict), f"study.contestants.{name}", value, "a table")
    return value


def _section(key: str, table: Any, kind: Any) -> Any:
    require(isinstance(table, dict), key, table, "a table")
    wanted = get_type_hints(kind)
    _refuse_unknown(key, table, list(wanted))
    for each in fields(kind):
        if each.default is each.default_factory and each.name not in table:
            raise RecipeError(f"{key}.{each.name} must be given", key)
    made = {
        # What is in these is checked by the recipes that they make.
        name: Table(flat(value))
        if name in ("grid", "options") and isinstance(value, dict)
        else fitted(f"{key}.{name}", value, wanted[name])
        for name, value in table.items()
    }
    return kind(**made)


def _refuse_unknown(key: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise unknown_key(f"{key}.{name}", f"[{key}]", known)


def _check(study: Study) -> None:
    """Refuses what does not fit together, before anything runs."""
    for each in ("reference", "equal_time.give", "equal_time.of"):
        first, _, last = each.partition(".")
        value = getattr(study, first)
        name = getattr(value, last) if last and value is not None else value
        if isinstance(name, str) and name not in study.contestants:
            raise UserError(f"study.{each}: {unknown('contestant', name, study.contestants)}")
    if study.equal_time is not None:
        _check_equal_time(study, study.equal_time)
    if study.measure is not None:
        check_metrics(study.measure.metrics)
        for split in study.measure.splits:
            require(split in ("train", "test"), "study.measure.splits", split, "train or test")
    _check_seeds("study.seeds", study.seeds)
    if study.choose is not None:
        _check_choose(study, study.choose)
    elif not study.seeds:
        raise UserError("a study needs study.seeds, or [study.choose], or both")
    for name, one in study.contestants.items():
        for key in one.grid:
            if "." not in key and key not in _options_of(study.recipe, one.method):
                raise unknown_key(
                    f"study.contestants.{name}.grid.{key}",
                    one.method,
                    _options_of(study.recipe, one.method),
                )
        for setting in study.settings(name):
            study.recipe_of(name, setting, seed=0)


def _check_choose(study: Study, choose: Choose) -> None:
    value = choose.validation
    require(0 < value < 1, "study.choose.validation", value, "above 0 and below 1")
    require(choose.epochs is None or choose.epochs >= 1, "study.choose.epochs", choose.epochs,
            "at least 1")  # fmt: skip
    require(bool(choose.seeds), "study.choose.seeds", choose.seeds, "at least one")
    _check_seeds("study.choose.seeds", choose.seeds)
    grids = {"study.choose.grid": choose.grid} | {
        f"study.contestants.{name}.grid": one.grid for name, one in study.contestants.items()
    }
    for place, grid in grids.items():
        for key, values in grid.items():
            require(isinstance(values, tuple) and bool(values), f"{place}.{key}", values,
                    "a list of values")  # fmt: skip
    takes = {o for one in study.contestants.values() for o in _options_of(study.recipe, one.method)}
    for key in choose.grid:
        if "." not in key and key not in takes:
            raise unknown_key(f"study.choose.grid.{key}", "a contestant", sorted(takes))


def _check_equal_time(study: Study, equal: EqualTime) -> None:
    factor = equal.factor
    require(factor is None or factor > 0, "study.equal_time.factor", factor, "above 0")
    if equal.give == equal.of:
        raise UserError(f"study.equal_time: give and of must differ, both are {equal.give!r}")
    if not study.seeds:
        raise UserError("study.equal_time needs final runs: give study.seeds")


def _check_seeds(key: str, seeds: tuple[int, ...]) -> None:
    require(len(set(seeds)) == len(seeds), key, seeds, "different from each other")
    require(all(seed >= 0 for seed in seeds), key, seeds, "at least 0")


@functools.lru_cache(maxsize=1024)
def _changed(recipe: Recipe, values: Table) -> Recipe:
    """Kept: a study is looked at anew after each of its runs."""
    return changed(recipe, values)


@functools.lru_cache
def _options_of(recipe: Recipe, method: str) -> tuple[str, ...]:
    settled = recipe.with_method(method).method
    return () if settled == recipe.optimizer.name else tuple(accepted("methods", settled))
