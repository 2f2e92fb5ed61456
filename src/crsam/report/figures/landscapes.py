"""Landscapes side by side on one scale, lines between models, planes through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsam.report.figures import style
from crsam.report.groups import Group
from crsam.report.landscapes import Landscape, read_landscape

SURFACES_NAME = "figure4-landscapes"
MOST_COLUMNS = 4
Array = NDArray[np.float64]


class Shown(NamedTuple):
    """A landscape, and whose it is."""

    title: str
    number: int
    """Of the group."""
    landscape: Landscape


def found_in(groups: Sequence[Group]) -> dict[str, list[Shown]]:
    """By the name of the file: of each group the landscape of its first run that has it."""
    found: dict[str, list[Shown]] = {}
    for i, group in enumerate(groups):
        seen: set[str] = set()
        for run in group.runs:
            for file in sorted(run.path.glob("*.npz")):
                landscape = None if file.stem in seen else _read(file)
                if landscape is not None and np.isfinite(landscape.loss).any():
                    seen.add(file.stem)
                    found.setdefault(file.stem, []).append(Shown(style.label(group), i, landscape))
    return found


def _read(file: Path) -> Landscape | None:
    """None if it is none: a run's folder may hold other arrays."""
    try:
        return read_landscape(file.read_bytes())
    except (OSError, ValueError):
        return None


def surfaces(groups: Sequence[Group]) -> Iterator[tuple[str, Any]]:
    """The paper's Figure 4, for every name under which there are landscapes over a plane."""
    for stem, shown in found_in(groups).items():
        flat = [one for one in shown if one.landscape.y is not None]
        for start in range(0, len(flat), MOST_COLUMNS):
            part = flat[start : start + MOST_COLUMNS]
            name = SURFACES_NAME if stem == "landscape" else stem
            name += f"-{start // MOST_COLUMNS + 1}" if start else ""
            yield name, side_by_side(part, scale_of(flat))


def lines(groups: Sequence[Group]) -> Iterator[tuple[str, Any]]:
    """Landscapes along a line, all in one; and how the loss rises around each minimum."""
    for stem, shown in found_in(groups).items():
        along = [one for one in shown if one.landscape.y is None]
        if along:
            yield stem if stem != "landscape" else "landscape-line", profiles(along)
        around = [one for one in shown if one.landscape.y is not None and _kind(one) == "filter"]
        if around and stem == "landscape":
            yield "landscape-rise", rises(around)


class Scale(NamedTuple):
    """What all landscapes of a figure share."""

    low: float
    high: float
    logarithmic: bool

    def seen(self, loss: Array) -> Array:
        """What is drawn: the loss, or its logarithm; infinite losses at the top, NaN as it is."""
        clipped = np.clip(np.where(np.isposinf(loss), self.high, loss), self.low, self.high)
        return np.log10(clipped) if self.logarithmic else clipped


def scale_of(shown: Sequence[Shown]) -> Scale:
    """From the lowest loss of all to the highest; logarithmic where that is far."""
    values = np.concatenate([one.landscape.loss[np.isfinite(one.landscape.loss)] for one in shown])
    low, high = float(values.min()), float(values.max())
    return Scale(low, max(high, low + 1e-12), low > 0 and high > 30 * low)


def side_by_side(shown: Sequence[Shown], scale: Scale) -> Any:
    """Above from the side, below from the top, one scale for all."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    count = len(shown)
    low, high = scale.seen(np.array([scale.low, scale.high]))
    norm = Normalize(low, high)
    levels = MaxNLocator(12).tick_values(low, high)
    figure = style.new_figure(4.3 if count > 2 else 4.6, min(style.WIDTH, 2.4 * count + 0.8))
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    tops = above.subplots(1, count, squeeze=False, subplot_kw={"projection": "3d"})[0]
    maps = below.subplots(1, count, squeeze=False, sharey=True)[0]
    for one, top, flat in zip(shown, tops, maps):
        from_the_side(top, one, scale, norm)
        from_the_top(flat, one, scale, norm, levels)
    x, y = axis_names(shown[0].landscape)
    maps[0].set_ylabel(y)
    for flat in maps:
        flat.set_xlabel(x)
    colors = ScalarMappable(norm, style.MAP)
    name = r"$\log_{10}$ loss" if scale.logarithmic else "loss"
    below.colorbar(colors, ax=list(maps), label=name, aspect=18, pad=0.02).outline.set_visible(
        False
    )
    return figure


def from_the_side(axes: Any, one: Shown, scale: Scale, norm: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    land = one.landscape
    assert land.y is not None
    x, y = np.meshgrid(land.x, land.y)
    z = scale.seen(land.loss)
    axes.plot_surface(
        x, y, z, cmap=style.MAP, norm=norm, rcount=61, ccount=61,
        linewidth=0.15, edgecolor=(1, 1, 1, 0.35), antialiased=True,
    )  # fmt: skip
    axes.set_zlim(norm.vmin, norm.vmax)
    axes.view_init(elev=24, azim=-58)
    axes.set_box_aspect((1, 1, 0.85), zoom=1.22)
    axes.tick_params(labelsize=5.5, pad=-3)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(3))
        axis.set_pane_color((1, 1, 1, 0))
        axis._axinfo["grid"].update(color="#dddddd", linewidth=0.4)
    missing = int(np.isnan(land.loss).sum())
    note = f"\n{missing} of {land.loss.size} points missing" if missing else ""
    axes.set_title(one.title + note, y=0.97)


def from_the_top(axes: Any, one: Shown, scale: Scale, norm: Any, levels: Array) -> None:
    land = one.landscape
    z = np.ma.masked_invalid(scale.seen(land.loss))
    axes.set_facecolor(style.NOT_THERE)
    axes.grid(False)
    if min(z.shape) > 1:
        axes.contourf(land.x, land.y, z, levels=200, cmap=style.MAP, norm=norm).set_edgecolor(
            "face"
        )
        drawn = axes.contour(land.x, land.y, z, levels=levels, colors="white", linewidths=0.5)
        axes.clabel(drawn, drawn.levels[::2], fontsize=5.5, fmt="%.3g")
    for k, place in enumerate(land.about.get("places", [[0.0, 0.0]])):
        names = land.about.get("of", [])
        axes.plot(*place, marker="o+x"[k % 3] if len(names) > 1 else "+", color="white", ms=6)
        if len(names) > 1 and k < len(names):
            axes.annotate(names[k], place, (4, 4), textcoords="offset points",
                          color="white", fontsize=6.5)  # fmt: skip
    axes.set_aspect("equal")


def axis_names(land: Landscape) -> tuple[str, str]:
    """What is along x and y."""
    if _kind_of(land) == "eigenvector":
        return "along the first eigenvector", "along the second"
    if _kind_of(land) == "plane":
        return "in distances between the first two models", ""
    return "direction 1, filter norms", "direction 2"


def profiles(shown: Sequence[Shown]) -> Any:
    """The loss along one direction, all in one panel."""
    figure = style.new_figure(2.5, 3.4)
    axes = figure.subplots()
    for one in shown:
        land = one.landscape
        loss = np.where(np.isfinite(land.loss[0]), land.loss[0], np.nan)
        places = [place[0] for place in land.about.get("places", [])]
        names = land.about.get("of", [])
        text = " to ".join(names) if len(names) > 1 else one.title
        axes.plot(land.x, loss, label=text, **style.line(one.number))
        for place in places:
            near = int(np.abs(land.x - place).argmin())
            axes.plot(land.x[near], loss[near], "o", color=style.color(one.number))
    between = _kind(shown[0]) == "line"
    axes.set(xlabel="from one model, at 0, to the other, at 1" if between
             else axis_names(shown[0].landscape)[0], ylabel="loss")  # fmt: skip
    axes.legend()
    return figure


def rises(shown: Sequence[Shown]) -> Any:
    """How far the loss has risen at a distance from the minimum: mean, least and most of a ring."""
    figure = style.new_figure(2.5, 3.4)
    axes = figure.subplots()
    for one in shown:
        distance, low, mean, high = rings(one.landscape)
        axes.plot(distance, mean, label=one.title, **style.line(one.number))
        axes.fill_between(
            distance, low, high, color=style.color(one.number), alpha=0.18, linewidth=0
        )
    axes.set(xlabel="distance from the minimum, filter norms", ylabel="rise of the loss")
    axes.set_xlim(left=0)
    axes.legend()
    return figure


def rings(land: Landscape) -> tuple[Array, Array, Array, Array]:
    """Distances, and least, mean and most rise of the loss at the points about that far away."""
    assert land.y is not None
    x, y = np.meshgrid(land.x, land.y)
    far, loss = np.hypot(x, y), np.where(np.isfinite(land.loss), land.loss, np.nan)
    rise = loss - loss.ravel()[far.argmin()]
    width = max(np.diff(land.x).max(initial=0), np.diff(land.y).max(initial=0), 1e-12)
    most = min(np.abs(land.x).max(), np.abs(land.y).max())  # rings that are whole
    rows = []
    for k in range(int(most / width + 1e-9) + 1):
        inside = rise[(np.abs(far - k * width) <= width / 2) & np.isfinite(rise)]
        if inside.size:
            rows.append((k * width, inside.min(), inside.mean(), inside.max()))
    columns = np.array(rows).reshape(-1, 4).T
    return columns[0], columns[1], columns[2], columns[3]


def _kind_of(land: Landscape) -> str:
    return str(land.about.get("kind", "filter"))


def _kind(one: Shown) -> str:
    return _kind_of(one.landscape)
