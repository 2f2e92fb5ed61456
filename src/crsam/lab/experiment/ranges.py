"""What a sweep tries: ranges of numbers and lists of choices, by the keys of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crsam.lab.experiment.values import RecipeError, Table, fitted, require, unknown_key

_ENDS = {"low": float | int, "high": float | int, "log": bool, "step": float | int}


@dataclass(frozen=True)
class Sweep:
    """What ``crsam sweep`` tries, and how often.

    Example:
        >>> Sweep({"optimizer": {"lr": {"low": 0.01, "high": 1.0, "log": True}}}).ranges
        {'optimizer.lr': {'low': 0.01, 'high': 1.0, 'log': True}}
    """

    ranges: Any = field(default_factory=Table)
    """By key: ``{low = …, high = …}`` with ``log`` or ``step``, or a list of choices. Those of
    methods that the recipe does not use are left alone."""
    trials: int = 20
    """Over all workers."""
    prune: bool = True
    """Whether a run ends early whose validation accuracy is below the median of the others'."""

    def __post_init__(self) -> None:
        require(isinstance(self.ranges, Mapping), "sweep.ranges", self.ranges, "a table of ranges")
        found = dict(_leaves(self.ranges))
        object.__setattr__(self, "ranges", Table(found))
        object.__setattr__(self, "trials", fitted("sweep.trials", self.trials, int))
        object.__setattr__(self, "prune", fitted("sweep.prune", self.prune, bool))
        require(self.trials >= 1, "sweep.trials", self.trials, "at least 1")

    def ends(self) -> Iterator[tuple[str, Any]]:
        """Each key with each value that must be allowed there."""
        for key, given in self.ranges.items():
            values = (given["low"], given["high"]) if isinstance(given, Mapping) else given
            yield from ((key, value) for value in values)


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The ranges by dotted keys, whether TOML was given the dots or tables in tables."""
    for name, value in tables.items():
        key = above + name
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, _checked(f"sweep.ranges.{key}", value)


def _checked(key: str, given: Any) -> Any:
    if not isinstance(given, Mapping):
        choices = isinstance(given, list | tuple) and len(given) > 0
        require(choices, key, given, "a list of choices, or a table with low and high")
        return tuple(given)
    for name in given:
        if name not in _ENDS:
            raise unknown_key(f"{key}.{name}", "a range", _ENDS)
    for name in ("low", "high"):
        if name not in given:
            raise RecipeError(f"{key}.{name} must be given", key)
    read = {name: fitted(f"{key}.{name}", value, _ENDS[name]) for name, value in given.items()}
    read = {n: given[n] if isinstance(given[n], int) else v for n, v in read.items()}
    require(read["low"] < read["high"], f"{key}.high", read["high"], f"above {read['low']}")
    if read.get("log"):
        require(read["low"] > 0, f"{key}.low", read["low"], "above 0, for log = true")
        require("step" not in read, f"{key}.step", read.get("step"), "absent where log = true")
    step = read.get("step", math.inf)
    require(step > 0, f"{key}.step", step, "above 0")
    return Table(read)
