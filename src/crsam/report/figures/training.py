"""Through training: approximation ratio, curvature, convergence, what the steps saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from crsam.report.figures import style
from crsam.report.figures.series import draw, fit_scale, has, series
from crsam.report.groups import Group, is_number, mean_of
from crsam.report.names import name_of

RATIO_NAME = "figure1-approximation-ratio"
RATIO = ("approximation_ratio", "hessian_trace", "top_eigenvalue")
GEOMETRY_NAME = "figure2-curvature"
GEOMETRY = ("top_eigenvalue", "hessian_trace", "gradient_norm", "normalized_trace",
            "approximation_ratio")  # fmt: skip
CONVERGENCE_NAME = "figure5-convergence"
SYMBOLS = {
    "approximation_ratio": "approximation ratio",
    "hessian_trace": r"Hessian trace $\mathrm{Tr}(\nabla^2 L)$",
    "top_eigenvalue": r"top eigenvalue $\lambda_1(\nabla^2 L)$",
    "gradient_norm": r"gradient norm $\|\nabla L\|$",
    "normalized_trace": r"$C(w) = \mathrm{Tr}(\nabla^2 L)\,/\,\|\nabla L\|$",
}

Drawings = Iterator[tuple[str, Any]]


def ratio(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 1: how well one step of ascent does, beside two measures of curvature."""
    keys = [key for key in RATIO if has(groups, "measure", key)]
    if RATIO[0] in keys:
        yield RATIO_NAME, panels(groups, "measure", keys, SYMBOLS, columns=3)


def geometry(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 2: measures of curvature, and C(w) against the approximation ratio."""
    keys = [key for key in GEOMETRY if has(groups, "measure", key)]
    if not keys:
        return
    both = {"normalized_trace", "approximation_ratio"} <= set(keys)
    figure = panels(groups, "measure", keys, SYMBOLS, columns=3, extra=int(both))
    if both:
        axes = figure.axes[len(keys)]
        _against(axes, groups, "normalized_trace", "approximation_ratio")
    yield GEOMETRY_NAME, figure


def _against(axes: Any, groups: Sequence[Group], x: str, y: str) -> None:
    """One measure against another through training; a ring where it ends."""
    for i, group in enumerate(groups):
        a, b = series(group, "measure", x), series(group, "measure", y)
        if a is None or b is None or not np.array_equal(a.epochs, b.epochs):
            continue
        axes.plot(a.mean, b.mean, marker=style.marker(i), **style.line(i))
        axes.plot(a.mean[-1:], b.mean[-1:], "o", ms=8, mfc="none", color=style.color(i))
        if (a.mean > 0).all() and np.nanmax(a.mean) > 10 * np.nanmin(a.mean):
            axes.set_xscale("log")
    axes.set(
        xlabel=r"$C(w)$",
        ylabel="approximation ratio",
        title="through training, to the ring",
    )


def convergence(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 5: loss and accuracy of training, validation and, at the end, test."""
    if not has(groups, "train", "loss"):
        return
    figure = style.new_figure(2.7)
    both = figure.subplots(1, 2)
    validated = has(groups, "validation", "loss")
    for axes, key in zip(both, ("loss", "accuracy")):
        drawn = []
        for i, group in enumerate(groups):
            for kind, dashes in (("train", "-"), ("validation", (0, (4, 2)))):
                found = series(group, kind, key)
                if found is not None:
                    lighter = 1.0 if kind == "train" else 0.75
                    draw(axes, found, i, linestyle=dashes, alpha=lighter, marker="")
                    drawn.append(found)
            _test(axes, group, key, i)
        if drawn:
            fit_scale(axes, drawn)
        unit = name_of(key).unit
        axes.set(xlabel="epoch", ylabel=f"{key}, {unit}" if unit else key)
    _key(figure, groups, validated)
    yield CONVERGENCE_NAME, figure


def _test(axes: Any, group: Group, key: str, index: int) -> None:
    """The result on the test set, at the last epoch."""
    ended = [run for run in group.runs if is_number(run.result.get(f"test_{key}"))]
    found = mean_of(run.result[f"test_{key}"] for run in ended)
    epochs = [
        line["epoch"] for run in ended for line in run.metrics if is_number(line.get("epoch"))
    ]
    if found is not None and epochs:
        axes.errorbar(
            [max(epochs)],
            [found.mean],
            [found.std or 0.0],
            fmt=style.marker(index),
            color=style.color(index),
            markeredgecolor="black",
            markeredgewidth=0.6,
            markersize=5,
            capsize=2,
            zorder=5,
        )


def _key(figure: Any, groups: Sequence[Group], validated: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.color(i), label=style.with_seeds(group))
        for i, group in enumerate(groups)
    ]
    handles.append(Line2D([], [], color="#555555", label="training"))
    if validated:
        handles.append(Line2D([], [], color="#555555", ls=(0, (4, 2)), label="validation"))
    handles.append(
        Line2D([], [], color="#bbbbbb", marker="o", mec="black", mew=0.6, ls="", label="test")
    )
    style.legend_above(figure, handles, 6)


def steps(groups: Sequence[Group]) -> Drawings:
    """All that the optimizer's steps reported, through training."""
    lines = [line for group in groups for run in group.runs for line in run.metrics]
    trained = [line for line in lines if line.get("kind") == "train"]
    known = dict.fromkeys(key for line in trained for key in line)
    keys = [
        key
        for key in known
        if key not in ("kind", "epoch", "step", "loss", "accuracy") and has(groups, "train", key)
    ]
    if keys:
        names = {key: name_of(key).text for key in keys}
        yield "step-report", panels(groups, "train", keys, names, columns=3)


def panels(
    groups: Sequence[Group],
    kind: str,
    keys: Sequence[str],
    names: dict[str, str],
    *,
    columns: int,
    extra: int = 0,
) -> Any:
    """A panel for each key, a line for each group; `extra` panels are left empty."""
    count = len(keys) + extra
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    height = 0.2 + 0.18 * math.ceil(len(groups) / 4) + 1.75 * rows
    figure = style.new_figure(height, style.WIDTH * min(columns, 3) / 3)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[count:]:
        unused.remove()
    handles: dict[int, Any] = {}
    for axes, key in zip(grid, keys):
        drawn = []
        for i, group in enumerate(groups):
            found = series(group, kind, key)
            if found is not None:
                draw(axes, found, i)
                drawn.append(found)
                handles.setdefault(i, axes.lines[-1 - len(found.ends)])
                handles[i].set_label(style.with_seeds(group))
        fit_scale(axes, drawn)
        axes.set(title=names[key], xlabel="epoch")
    style.legend_above(figure, list(handles.values()), 4)
    return figure
