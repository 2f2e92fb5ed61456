"""A study: who competes, and on what terms."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from crsam.lab.experiment.layers import changed
from crsam.lab.experiment.options import accepted
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.values import Table


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
    widen: Mapping[str, Any] = field(default_factory=Table)
    """By key of a grid: how many values more may be tried beyond an edge that was best."""


@dataclass(frozen=True)
class EqualTime:
    """Contestants once more, each with as many epochs as take another one's time."""

    give: tuple[str, ...]
    """Who gets more epochs."""
    of: str
    """Whose time."""
    factor: Mapping[str, float] = field(default_factory=Table)
    """How many times the epochs, by contestant; for who is not in it, as the final runs show."""


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
    rho: float = 0.05
    """The radius of sharpness, of the approximation ratio and of the bound."""
    batch_size: int = 512
    """Images in a batch. With all of them in one, eigenvalues take less time and more memory. The
    figures ``…_of_batches`` depend on it."""


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
        takes = options_of(self.recipe, one.method)
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
        """The recipe of a final run: on the whole training set, and tested.

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
        whole = {"data.validation": 0.0, "log.test": True}
        values |= {"method": method, "seed": seed, **whole, **(also or {})}
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


@functools.lru_cache(maxsize=1024)
def _changed(recipe: Recipe, values: Table) -> Recipe:
    """Kept: a study is looked at anew after each of its runs."""
    return changed(recipe, values)


@functools.lru_cache
def options_of(recipe: Recipe, method: str) -> tuple[str, ...]:
    """What a method takes; the base optimizer alone takes nothing here."""
    settled = recipe.with_method(method).method
    return () if settled == recipe.optimizer.name else tuple(accepted("methods", settled))
