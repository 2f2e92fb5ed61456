"""Landscapes side by side on one scale, lines between models, planes through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsam._arrays import content_of
from crsam.lab.report.figures import style
from crsam.lab.report.groups import Group, is_number
from crsam.lab.report.landscapes import Landscape, read_landscape
from crsam.lab.report.runs import Run

SURFACES_NAME = "figure4-landscapes"
MOST_COLUMNS = 4
Array = NDArray[np.float64]


class Shown(NamedTuple):
    """A landscape, and whose it is."""

    group: str
    number: int
    """Of the group."""
    landscape: Landscape

    @property
    def name(self) -> str:
        """The group's, or those of the models that a line or plane goes through."""
        names = self.landscape.about.get("of")
        if isinstance(names, list) and len(names) > 1:
            return ", ".join(map(style.text, names))
        return self.group

    def models(self) -> list[tuple[list[float], str]]:
        """Where the models are, and what to write beside them."""
        about, num = self.landscape.about, 1 if self.landscape.y is None else 2
        places, names = about.get("places"), about.get("of")
        if not isinstance(places, list) or not isinstance(names, list):
            return [([0.0] * num, "")]
        whole = [p for p in places if isinstance(p, list) and len(p) == num]
        return [(p, style.text(name)) for p, name in zip(whole, names) if all(map(is_number, p))]


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
        return read_landscape(content_of(file))
    except (OSError, ValueError, TypeError):
        return None


def broken(run: Run) -> list[str]:
    """A line for each file that should be a landscape and is none; the reader tells of one."""
    files = [file for file in sorted(run.path.glob("landscape-*.npz")) if _read(file) is None]
    return [f"{file.name} is not a landscape" for file in files]


def surfaces(groups: Sequence[Group]) -> Iterator[tuple[str, Any]]:
    """The paper's Figure 4, for every name under which there are landscapes over a plane."""
    for stem, shown in found_in(groups).items():
        flat = [one for one in shown if is_plane(one.landscape)]
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
        flat = [one for one in shown if is_plane(one.landscape)]
        around = [one for one in flat if kind_of(one.landscape) == "filter"]
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
    return Scale(low, max(high, low + 1e-6 * max(abs(low), 1)), low > 0 and high > 30 * low)


def side_by_side(shown: Sequence[Shown], scale: Scale) -> Any:
    """Above from the side, below from the top, one scale for all."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    count = len(shown)
    low, high = scale.seen(np.array([scale.low, scale.high])).tolist()
    norm = Normalize(low, high)
    levels = np.asarray(MaxNLocator(12).tick_values(low, high))
    figure = style.new_figure(4.4, min(style.WIDTH, 2.2 * count + 1.5))
    grid = figure.add_gridspec(2, count, height_ratios=(1.1, 1))
    above = [figure.add_subplot(grid[0, k], projection="3d") for k in range(count)]
    below = [figure.add_subplot(grid[1, k]) for k in range(count)]
    for one, top, flat in zip(shown, above, below):
        from_the_side(top, one, scale, norm)
        from_the_top(flat, one, scale, norm, levels)
        flat.set_xlabel(axis_names(one.landscape)[0])
        flat.label_outer()
    below[0].set_ylabel(axis_names(shown[0].landscape)[1])
    name = r"$\log_{10}$ loss" if scale.logarithmic else "loss"
    colors = ScalarMappable(norm, style.MAP)
    side = figure.colorbar(colors, ax=[*above, *below], label=name, aspect=35, pad=0.02)
    side.outline.set_visible(False)
    return figure


def from_the_side(axes: Any, one: Shown, scale: Scale, norm: Any) -> None:
    """As a surface in space."""
    from matplotlib.ticker import MaxNLocator

    land = one.landscape
    assert land.y is not None
    x, y = np.meshgrid(land.x, land.y)
    axes.plot_surface(
        x, y, scale.seen(land.loss), cmap=style.MAP, norm=norm, rcount=61, ccount=61,
        linewidth=0.15, edgecolor=(1, 1, 1, 0.35), rasterized=True,
    )  # fmt: skip
    axes.set_zlim(norm.vmin, norm.vmax)
    axes.view_init(elev=24, azim=-58)
    axes.set_box_aspect((1, 1, 0.85), zoom=1.15)
    axes.tick_params(labelsize=5.5, pad=-3)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(3))
        axis.set_pane_color((1, 1, 1, 0))
    axes.set_title("\n".join([one.name, *notes(land)]), y=1.0)


def notes(land: Landscape) -> list[str]:
    """What else to say of a landscape: its eigenvalues, and what is not there."""
    missing, endless = int(np.isnan(land.loss).sum()), int(np.isinf(land.loss).sum())
    values = land.about.get("eigenvalues")
    found = []
    if isinstance(values, list) and all(isinstance(value, float) for value in values):
        found.append(r"$\lambda$ = " + ", ".join(f"{value:.3g}" for value in values))
    found += [f"{missing} of {land.loss.size} points missing"] if missing else []
    return found + ([f"not finite at {endless} points"] if endless else [])


def from_the_top(axes: Any, one: Shown, scale: Scale, norm: Any, levels: Array) -> None:
    """As a map, with the models on it."""
    land = one.landscape
    z = np.ma.masked_invalid(scale.seen(land.loss))
    axes.set_facecolor(style.NOT_THERE)
    axes.grid(False)
    shades = np.linspace(norm.vmin, norm.vmax, 200)
    axes.contourf(land.x, land.y, z, shades, cmap=style.MAP, norm=norm).set_rasterized(True)
    crossed = levels[(levels > z.min()) & (levels < z.max())]
    if crossed.size:
        drawn = axes.contour(land.x, land.y, z, crossed, colors="white", linewidths=0.5)
        axes.clabel(drawn, drawn.levels[::2], fontsize=5.5, fmt="%.3g")
    middle = (land.x[0] + land.x[-1]) / 2
    for place, name in one.models():
        axes.plot(*place, "+", color="white", ms=6)
        right = place[0] > middle
        axes.annotate(
            name, place, (-4 if right else 4, 4), textcoords="offset points", fontsize=6.5,
            ha="right" if right else "left", color="white", path_effects=style.outlined(),
        )  # fmt: skip
    axes.set_aspect("equal")


def axis_names(land: Landscape) -> tuple[str, str]:
    """What is along x and y."""
    kind = kind_of(land)
    if kind == "eigenvector":
        return "along the first eigenvector", "along the second"
    if kind == "plane":
        return "distance, first to second model = 1", ""
    if kind == "line":
        return "from one model, at 0, to the other, at 1", ""
    return "direction 1, in filter norms", "direction 2, in filter norms"


def profiles(shown: Sequence[Shown]) -> Any:
    """The loss along one direction, all in one panel."""
    figure = style.new_figure(2.5, 3.4)
    axes = figure.subplots()
    for one in shown:
        land = one.landscape
        loss = np.where(np.isfinite(land.loss[0]), land.loss[0], np.nan)
        axes.plot(land.x, loss, label=one.name, **style.line(one.number))
        for place, name in one.models():
            near = int(np.abs(land.x - place[0]).argmin())
            axes.plot(land.x[near], loss[near], "o", color=style.color(one.number))
            if name:
                axes.annotate(name, (land.x[near], loss[near]), (5, -9),
                              textcoords="offset points", fontsize=7)  # fmt: skip
    axes.set(xlabel=axis_names(shown[0].landscape)[0], ylabel="loss")
    if kind_of(shown[0].landscape) != "line":
        axes.legend()
    return figure


def rises(shown: Sequence[Shown]) -> Any:
    """How far the loss has risen at a distance from the minimum: mean, least and most of a ring."""
    figure = style.new_figure(2.5, 3.4)
    axes = figure.subplots()
    for one in shown:
        distance, low, mean, high = rings(one.landscape)
        axes.plot(distance, mean, label=one.group, **style.line(one.number))
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


def is_plane(land: Landscape) -> bool:
    """Whether it has at least two points each way."""
    return land.y is not None and min(land.loss.shape) > 1


def kind_of(land: Landscape) -> str:
    """What it is along."""
    return str(land.about.get("kind", "filter"))
