"""Tables of how flat the places are that the runs came to, with errors where there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from crsam.lab.report.groups import Group, is_number, mean_of
from crsam.lab.report.names import name_of
from crsam.lab.report.runs import Run

Figures = dict[str, tuple[float, float | None]]
"""Value and standard error, by name."""

AT_THE_END = ("gradient_norm", "sharpness")


def geometry(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A table for each source of figures: result.json, the recipe's [measure], crsam measure."""
    runs = [run for group in groups for run in group.runs]
    splits = sorted({split for run in runs for split in run.measures})
    sources: list[tuple[str, Callable[[Run], Figures]]] = [
        *(
            (
                f"After the last epoch, {_images(runs)}{word} images ([measure])",
                _last_measured(kind),
            )
            for kind, word in (("measure", "training"), ("measure_test", "test"))
        ),
        *(source for on in splits for source in _measured(runs, on)),
        ("After the last epoch, at most 2,048 training images (result.json)", _of_result),
    ]
    tables = [table_of(title, figures, groups) for title, figures in sources]
    return [table for table in tables if table["columns"]]


def _images(runs: Sequence[Run], split: str | None = None) -> str:
    """On how many images the figures were taken, if all runs agree: ``"at most 500 "``."""
    said = [run.recipe.get("measure") if split is None else run.measures.get(split) for run in runs]
    counts = [table.get("samples") for table in said if isinstance(table, dict)]
    alike = {count for count in counts if is_number(count)}
    return f"at most {alike.pop():,} " if len(alike) == 1 else ""


def table_of(title: str, figures: Callable[[Run], Figures], groups: Sequence[Group]) -> Any:
    """A row for each group, with a cell for each figure that some run has."""
    by_group = [[figures(run) for run in group.runs] for group in groups]
    keys = dict.fromkeys(key for mine in by_group for each in mine for key in each)
    return {
        "title": title,
        "columns": [{"key": key, **name_of(key)._asdict()} for key in keys],
        "rows": [
            {"cells": [_cell(mine, key) for key in keys], "runs": [_single(e, keys) for e in mine]}
            for mine in by_group
        ],
    }


def _cell(runs: Sequence[Figures], key: str) -> Any:
    """The mean over the runs that have the figure, and how many; one keeps its own error."""
    have = [figures[key] for figures in runs if key in figures]
    mean = mean_of(value for value, _ in have)
    if mean is None:
        return None
    error = have[0][1] if mean.num == 1 else mean.stderr
    return {"mean": mean.mean, "error": error, "num": mean.num, "of": len(runs)}


def _single(figures: Figures, keys: Sequence[str] | dict[str, None]) -> list[Any]:
    return [
        {"mean": figures[key][0], "error": figures[key][1]} if key in figures else None
        for key in keys
    ]


def _last_measured(kind: str) -> Callable[[Run], Figures]:
    """The last line of this kind of a run that is done."""

    def figures(run: Run) -> Figures:
        lines = [line for line in run.metrics if line.get("kind") == kind]
        if not lines or run.state != "done":
            return {}
        last = lines[-1]
        return {
            key: (float(last[key]), _error(last.get(f"{key}_stderr")))
            for key in last
            if key != "epoch" and not key.endswith("_stderr") and is_number(last[key])
        }

    return figures


def _measured(runs: Sequence[Run], split: str) -> list[tuple[str, Callable[[Run], Figures]]]:
    """A source for each way in which ``crsam measure`` was asked: what differs is not averaged."""
    ways = dict.fromkeys(_way(run, split) for run in runs if split in run.measures)
    different = [name for i, name in enumerate(SETTINGS) if len({way[i] for way in ways}) > 1]
    sources = []
    for way in ways:
        mine = [run for run in runs if _way(run, split) == way]
        told = dict(zip(SETTINGS, way))
        apart = "".join(f", {name} {told[name]}" for name in different if name != "samples")
        title = f"{_images(mine, split)}{split} images (crsam measure{apart})"
        sources.append((title, _measured_on(split, way)))
    return sources


SETTINGS = ("step", "samples", "rho", "num_probes", "seed", "batch_size")
"""What figures of ``crsam measure`` depend on; of a step, whether it is the last."""


def _way(run: Run, split: str) -> tuple[str, ...]:
    measured = run.measures.get(split, {})
    at_the_end = measured.get("step") == run.result.get("steps")
    said = {**measured, "step": "the last"} if at_the_end else measured
    return tuple(str(said.get(name)) for name in SETTINGS)


def _measured_on(split: str, way: tuple[str, ...]) -> Callable[[Run], Figures]:
    def figures(run: Run) -> Figures:
        metrics = run.measures.get(split, {}).get("metrics") if _way(run, split) == way else None
        found = metrics.items() if isinstance(metrics, dict) else ()
        return {
            key: (float(each["value"]), _error(each.get("stderr")))
            for key, each in found
            if isinstance(each, dict) and is_number(each.get("value"))
        }

    return figures


def _of_result(run: Run) -> Figures:
    return {
        key: (float(run.result[key]), None) for key in AT_THE_END if is_number(run.result.get(key))
    }


def _error(value: Any) -> float | None:
    return float(value) if is_number(value) else None
