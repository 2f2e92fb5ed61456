"""Many runs, paired by seed, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crsam.errors import UserError
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.journal import Result
from crsam.lab.experiment.occupied import check_free
from crsam.lab.experiment.recipe import Recipe, as_tables
from crsam.lab.experiment.run import run
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.progress import bar, on_terminal, say


@dataclass(frozen=True)
class Spread:
    """A mean over seeds."""

    mean: float
    std: float
    """Of single values; NaN for a single seed."""
    num: int

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(self.num)


@dataclass(frozen=True)
class Row:
    """One method of a comparison."""

    method: str
    test_accuracy: Spread
    difference: Spread | None
    """Of the accuracy to the first method's, seed by seed; None for the first itself."""
    gradient_norm: Spread
    sharpness: Spread
    time: float
    """Of a run, relative to the first method's."""
    num_diverged: int


def compare(
    recipe: Recipe,
    methods: Sequence[str],
    num_seeds: int,
    folder: str | Path,
    world: World | None = None,
    *,
    fresh: bool = False,
) -> list[Row]:
    """Runs every method with every seed, each in ``folder/METHOD/seedN``, and tabulates.

    Every method sees the same data, first weights and order of batches for a seed, so the
    differences between methods are taken seed by seed. Runs that are done are not done again.

    Args:
        recipe: What all have in common; its own seed is the first.
        methods: By name; the first is what the others are compared with.
        num_seeds: How many.
        folder: For all runs and for ``comparison.json``.
        world: The processes that take part.
        fresh: Do everything anew.

    Raises:
        UserError: If methods, seeds or recipe make no comparison, or if `folder` holds runs of
            another recipe or somebody else's files.
    """
    if len(set(methods)) < len(methods):
        raise UserError(f"a method is named twice: {', '.join(methods)}")
    if num_seeds < 1:
        raise UserError(f"the number of seeds must be at least 1, got {num_seeds}")
    if not recipe.log.test:
        raise UserError("methods are compared on the test set: log.test must be true, got False")
    world = world or World()
    recipes = [
        replace(recipe, method=method, seed=recipe.seed + k)
        for k in range(num_seeds)
        for method in methods
    ]
    if world.is_main:  # before the first of them, not when it is some run's turn
        check_free(Path(folder))
        for one in recipes:
            check_free(_place(folder, one))
            RunFolder(_place(folder, one)).check(one, fresh)
    results: list[Result] = []
    shown = None if world.is_main else False
    with stoppable() as stop, bar("all runs", len(recipes), shown=shown) as advance:
        for one in recipes:
            if world.any(stop.asked):
                raise Stopped
            result = run(one, _place(folder, one), world, fresh=fresh, lines=False)
            results.append(result)
            advance(note=f"{one.method}, seed {one.seed}: {result['test_accuracy']:.2f} %")
            if world.is_main and not on_terminal():
                say(f"seed {one.seed}  {one.method:10} {result['test_accuracy']:6.2f} %")
    rows = tabulate(results)
    if world.is_main:
        content = {
            **environment(world.device),
            "recipe": as_tables(recipe),
            "rows": as_json(rows),
            "runs": results,
        }
        RunFolder(folder).write_json("comparison.json", content)
    return rows


def _place(folder: str | Path, recipe: Recipe) -> Path:
    return Path(folder) / recipe.method / f"seed{recipe.seed}"


def tabulate(results: Sequence[Result]) -> list[Row]:
    """A row a method, in the order in which they first appear; the first is the reference."""
    methods = list(dict.fromkeys(result["method"] for result in results))
    by_method = {m: {r["seed"]: r for r in results if r["method"] == m} for m in methods}
    reference = by_method[methods[0]]
    rows = []
    for method, mine in by_method.items():
        pairs = [(mine[seed], reference[seed]) for seed in mine if seed in reference]
        gains = [a["test_accuracy"] - b["test_accuracy"] for a, b in pairs]
        rows.append(
            Row(
                method,
                spread([r["test_accuracy"] for r in mine.values()]),
                None if mine is reference else spread(gains),
                spread([r["gradient_norm"] for r in mine.values()]),
                spread([r["sharpness"] for r in mine.values()]),
                sum(a["seconds"] for a, _ in pairs) / sum(b["seconds"] for _, b in pairs),
                sum(r["diverged_at"] is not None for r in mine.values()),
            )
        )
    return rows


def spread(values: Sequence[float | None]) -> Spread:
    """Mean and standard deviation; of runs that have no such value, NaN."""
    if any(value is None for value in values) or not values:
        return Spread(math.nan, math.nan, len(values))
    numbers = [float(value) for value in values if value is not None]
    std = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
    return Spread(statistics.mean(numbers), std, len(numbers))


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as plain values."""

    def plain(value: Any) -> Any:
        return {**vars(value), "error": value.error} if isinstance(value, Spread) else value

    return [{name: plain(value) for name, value in vars(row).items()} for row in rows]
