"""Through training: approximation ratio, curvature, convergence, what the steps saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from crsam.lab.report.figures import style
from crsam.lab.report.figures.series import draw, fit_scale, has, series
from crsam.lab.report.groups import Group, is_number, mean_of
from crsam.lab.report.names import name_of

RATIO_NAME = "figure1-approximation-ratio"
RATIO = ("approximation_ratio", "hessian_trace", "top_eigenvalue")
GEOMETRY_NAME = "figure2-curvature"
GEOMETRY = ("top_eigenvalue", "hessian_trace", "gradient_norm", "normalized_trace",
            "gradient_norm_of_batches", "normalized_trace_of_batches",
            "approximation_ratio")  # fmt: skip
CONVERGENCE_NAME = "figure5-convergence"
SYMBOLS = {
    "approximation_ratio": "approximation ratio",
    "hessian_trace": r"Hessian trace $\mathrm{Tr}(\nabla^2 L)$",
    "top_eigenvalue": r"top eigenvalue $\lambda_1(\nabla^2 L)$",
    "gradient_norm": r"gradient norm $\|\nabla L\|$",
    "normalized_trace": r"$C(w) = \mathrm{Tr}(\nabla^2 L)\,/\,\|\nabla L\|$",
    "gradient_norm_of_batches": r"gradient norm of batches $\overline{\|\nabla L_b\|}$",
    "normalized_trace_of_batches": r"$\mathrm{Tr}(\nabla^2 L)\,/\,\overline{\|\nabla L_b\|}$",
}
MEASURED = ("measure", "measure_test")
"""Figures on training images and on test images."""
DASHED: Any = (0, (4, 2))
DOTTED: Any = (0, (1, 1.2))

Drawings = Iterator[tuple[str, Any]]


def ratio(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 1: how well one step of ascent does, beside two measures of curvature."""
    keys = [key for key in RATIO if has(groups, "measure", key)]
    if RATIO[0] in keys:
        yield RATIO_NAME, panels(groups, ("measure",), keys, SYMBOLS, columns=3)


def geometry(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 2: measures of curvature, and C(w) against the approximation ratio.

    Lines are solid for training images and dashed for test images, where there are both.
    """
    kinds = [kind for kind in MEASURED if any(has(groups, kind, key) for key in GEOMETRY)]
    keys = [key for key in GEOMETRY if any(has(groups, kind, key) for kind in kinds)]
    if not keys:
        return
    both = all(has(groups, "measure", key) for key in ("normalized_trace", "approximation_ratio"))
    figure = panels(groups, kinds, keys, SYMBOLS, columns=3, extra=int(both))
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
        look = {**style.line(i), "linestyle": "-"}  # dashes may mean test images beside it
        axes.plot(a.mean, b.mean, marker=style.marker(i), **look)
        axes.plot(a.mean[-1:], b.mean[-1:], "o", ms=8, mfc="none", color=style.color(i))
        if (a.mean > 0).all() and np.nanmax(a.mean) > 10 * np.nanmin(a.mean):
            axes.set_xscale("log")
    axes.set(
        xlabel=r"$C(w)$",
        ylabel="approximation ratio",
        title="on training images, to the ring",
    )


def convergence(groups: Sequence[Group]) -> Drawings:
    """The paper's Figure 5: loss and accuracy of training, validation and test.

    The test curves need ``measure.split = "test"`` and the metrics loss and accuracy. Without them
    only the result at the end is drawn.
    """
    if not has(groups, "train", "loss"):
        return
    figure = style.new_figure(2.7)
    both = figure.subplots(1, 2)
    kinds = [(kind, *look) for kind, *look in CURVES if has(groups, kind, "loss")]
    for axes, key in zip(both, ("loss", "accuracy")):
        drawn = []
        for i, group in enumerate(groups):
            for kind, _, dashes in kinds:
                found = series(group, kind, key)
                if found is not None:
                    lighter = 1.0 if kind != "validation" else 0.75
                    draw(axes, found, i, linestyle=dashes, alpha=lighter, marker="")
                    drawn.append(found)
            _test(axes, group, key, i)
        if drawn:
            fit_scale(axes, drawn)
        unit = name_of(key).unit
        axes.set(xlabel="epoch", ylabel=f"{key}, {unit}" if unit else key)
    _key(figure, groups, kinds)
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


CURVES: tuple[tuple[str, str, Any], ...] = (
    ("train", "training", "-"),
    ("validation", "validation", DASHED),
    ("measure_test", "test", DOTTED),
)
"""Kinds of lines in the figure of convergence, how they are called, and their dashes."""


def _key(figure: Any, groups: Sequence[Group], kinds: Sequence[Any]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.color(i), label=style.with_seeds(group))
        for i, group in enumerate(groups)
    ]
    handles += [Line2D([], [], color="#555555", ls=ls, label=word) for _, word, ls in kinds]
    ended = "test, at the end" if any(kind == "measure_test" for kind, *_ in kinds) else "test"
    handles.append(
        Line2D([], [], color="#bbbbbb", marker="o", mec="black", mew=0.6, ls="", label=ended)
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
        yield "step-report", panels(groups, ("train",), keys, names, columns=3)


def panels(
    groups: Sequence[Group],
    kinds: Sequence[str],
    keys: Sequence[str],
    names: dict[str, str],
    *,
    columns: int,
    extra: int = 0,
) -> Any:
    """A panel for each key, a line for each group; `extra` panels are left empty.

    With two kinds of lines of the log, those of the first are solid and those of the second dashed.
    """
    from matplotlib.lines import Line2D

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
            for kind, dashes in zip(kinds, ("-", DASHED)):
                found = series(group, kind, key)
                if found is None:
                    continue
                draw(axes, found, i, **({"linestyle": dashes} if len(kinds) > 1 else {}))
                drawn.append(found)
                handles.setdefault(i, axes.lines[-1 - len(found.ends)])
                handles[i].set_label(style.with_seeds(group))
        fit_scale(axes, drawn)
        axes.set(title=names[key], xlabel="epoch")
    entries = list(handles.values())
    if len(kinds) > 1:
        words = zip(("training images", "test images"), ("-", DASHED))
        entries += [Line2D([], [], color="#555555", ls=ls, label=word) for word, ls in words]
    style.legend_above(figure, entries, 4)
    return figure
