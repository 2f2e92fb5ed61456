"""Curves of a group of runs: the mean over seeds, and how far they lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crsam.lab.report.figures import style
from crsam.lab.report.groups import Group, is_number
from crsam.lab.report.runs import Run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One figure through training, over the seeds of a group."""

    epochs: Array
    mean: Array
    """NaN where no run has a finite value."""
    std: Array
    """0 where one run only has a value."""
    ends: list[tuple[float, float]]
    """Where a run that diverged was last seen: epoch and value."""


def points(run: Run, kind: str, key: str) -> dict[float, float]:
    """The values of one run by epoch; NaN for what was not finite."""
    return {
        float(line["epoch"]): float(line[key]) if is_number(line[key]) else np.nan
        for line in run.metrics
        if line.get("kind") == kind and key in line and is_number(line.get("epoch"))
    }


def series(group: Group, kind: str, key: str) -> Series | None:
    """Over the runs that have it; None if none does."""
    found = [(run, values) for run in group.runs if (values := points(run, kind, key))]
    epochs = sorted({epoch for _, values in found for epoch in values})
    table = np.array([[values.get(epoch, np.nan) for epoch in epochs] for _, values in found])
    if not np.isfinite(table).any():
        return None
    there = np.isfinite(table)
    count = there.sum(0)
    total = np.where(there, table, 0).sum(0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    squares = np.where(there, (table - mean) ** 2, 0).sum(0)
    std = np.sqrt(squares / np.maximum(count - 1, 1))
    ends = []
    for (run, _), row, finite in zip(found, table, there):
        if run.state == "diverged" and finite.any():
            last = int(np.flatnonzero(finite)[-1])
            ends.append((epochs[last], float(row[last])))
    return Series(np.array(epochs), mean, std, ends)


def has(groups: Any, kind: str, key: str) -> bool:
    """Whether any run has finite values of it."""
    return any(series(group, kind, key) is not None for group in groups)


def draw(axes: Any, found: Series, index: int, **options: Any) -> None:
    """Mean and band; × where a run diverged."""
    few = np.isfinite(found.mean).sum() <= 15
    look = {**style.line(index), "marker": style.marker(index) if few else "", **options}
    axes.plot(found.epochs, found.mean, **look)
    band = {"color": look["color"], "alpha": 0.18, "linewidth": 0}
    axes.fill_between(found.epochs, found.mean - found.std, found.mean + found.std, **band)
    for epoch, value in found.ends:
        axes.plot([epoch], [value], marker="X", color=look["color"], markersize=6, clip_on=False)


def fit_scale(axes: Any, drawn: list[Series]) -> None:
    """A logarithmic axis where values are positive and span two orders of magnitude."""
    values = np.concatenate([s.mean[np.isfinite(s.mean)] for s in drawn])
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        axes.set_yscale("log")
