"""What studies say: who is ahead by how much, and how much hangs on the choice of a value."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crsam.lab.interval import Interval
from crsam.lab.report.figures import style
from crsam.lab.report.groups import is_number
from crsam.lab.report.studies import Lead, Study, Tried

LEADS_NAME = "study-leads"
CHOICE_NAME = "study-choice"
EPOCHS, TIME = "at equal epochs", "at equal time, the reference with more epochs"
COLORS = {EPOCHS: style.color(0), TIME: style.color(5)}
GAP = 0.5
"""Between two contestants, in lines."""
FAR = 10
"""What ends so many times as far out as the next one, and most do not, is an arrow at the edge."""
APART = 1.15
"""From one labelled value of a logarithmic axis to the next, at least."""

Curves = dict[str, list[Tried]]


def leads(studies: Sequence[Study]) -> Iterator[tuple[str, Any]]:
    """A panel a study: every contestant's accuracy less the reference's, with its interval."""
    shown = [(study, found) for study in studies if (found := list(study.leads()))]
    if not shown:
        return
    rows = [sum(len(_bars(lead)) + GAP for lead in found) for _, found in shown]
    figure = style.new_figure(0.3 + 0.6 * len(rows) + 0.17 * sum(rows))
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1.2 for n in rows])
    for axes, (study, found) in zip(grid[:, 0], shown):
        _panel(axes, study, found)
    _key(figure, [lead for _, found in shown for lead in found])
    yield LEADS_NAME, figure


def _panel(axes: Any, study: Study, found: Sequence[Lead]) -> None:
    edge = _edge([one for lead in found for _, one in _bars(lead)])
    axes.axvline(0, color="#555555", linewidth=0.8, zorder=1)
    names: dict[float, str] = {}
    numbers: dict[float, str] = {}
    y = 0.0
    for lead in found:
        bars = _bars(lead)
        names[y + (len(bars) - 1) / 2] = _short(lead.label)
        for how, one in bars:
            _bar(axes, one, y, how, edge)
            numbers[y] = _number(one)
            y += 1
        y += GAP
    axes.set_yticks(list(names), list(names.values()))
    axes.set(xlim=(-edge, edge), ylim=(y - GAP - 0.3, -0.7))
    epochs = set() if study.first is None else study.first.epochs
    title = textwrap.fill(study.title(epochs, study.sources), 80)
    axes.set_title(style.text(title), loc="left")
    axes.set_xlabel(style.text(f"test accuracy less {_short(study.reference)}'s, points"))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(list(numbers), list(numbers.values()))
    beside.tick_params(length=0)
    beside.spines["right"].set_visible(False)


def _bars(lead: Lead) -> list[tuple[str, Interval]]:
    both = (EPOCHS, lead.at_equal_epochs), (TIME, lead.at_equal_time)
    return [(how, one) for how, one in both if one is not None]


def _bar(axes: Any, one: Interval, y: float, how: str, edge: float) -> None:
    look: dict[str, Any] = {"color": COLORS[how], "zorder": 3}
    ends = _ends(one)
    for beyond, marker, place in (
        (ends[0] < -edge, "<", -0.985 * edge),
        (ends[-1] > edge, ">", 0.985 * edge),
    ):
        if beyond:
            axes.plot([place], [y], marker, ms=5, clip_on=False, **look)
    inside = [min(max(end, -edge), edge) for end in ends]
    axes.plot([inside[0], inside[-1]], [y, y], solid_capstyle="butt", **look)
    if inside[0] < inside[-1] or abs(one.mean) <= edge:  # else the arrow says it all
        empty = {"markerfacecolor": "white"} if how == TIME else {}
        mean = min(max(one.mean, -0.95 * edge), 0.95 * edge)
        axes.plot([mean], [y], "o", ms=5, **look, **empty)


def _ends(one: Interval) -> tuple[float, float]:
    """Of the interval; of one seed, which has none, the mean."""
    return (one.mean, one.mean) if math.isnan(one.low) else (one.low, one.high)


def _edge(found: Sequence[Interval]) -> float:
    """How far an axis goes either way."""
    reach = sorted(max(map(abs, _ends(one))) for one in found)
    for i in range(len(reach) // 2, len(reach) - 1):  # most bars are seen whole
        if reach[i + 1] > FAR * reach[i] > 0:
            return 1.1 * reach[i]
    return 1.1 * reach[-1] or 1.0


def _number(one: Interval) -> str:
    ends = "" if math.isnan(one.low) else f" ({one.low:+z.2f} to {one.high:+z.2f})"
    seeds = "1 seed" if one.num == 1 else f"{one.num} seeds"
    return f"{one.mean:+z.2f}{ends}, {seeds}".replace("-", "−")


def _short(words: str) -> str:
    return style.text(textwrap.shorten(words, 40, placeholder=" …") if len(words) > 40 else words)


def _key(figure: Any, found: Sequence[Lead]) -> None:
    from matplotlib.lines import Line2D

    there = {how for lead in found for how, _ in _bars(lead)}
    handles = [
        Line2D([], [], color=COLORS[how], marker="o", ms=5, label=how,
               mfc="white" if how == TIME else COLORS[how])
        for how in (EPOCHS, TIME) if how in there
    ]  # fmt: skip
    style.legend_above(figure, handles, 2)


def choice(studies: Sequence[Study]) -> Iterator[tuple[str, Any]]:
    """Validation accuracy over the values that were tried, the others as chosen."""
    panels = [(study, key, curves) for study in studies for key, curves in _curves(study).items()]
    if not panels:
        return
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    figure = style.new_figure(0.4 + 2.4 * rows, style.WIDTH * (1 if columns == 2 else 0.65))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[len(panels) :]:
        unused.remove()
    names = list(dict.fromkeys(name for _, _, curves in panels for name in curves))
    for axes, (study, key, curves) in zip(grid, panels):
        for name, tried in curves.items():
            _curve(axes, tried, key, names.index(name))
        _end_below(axes, curves, key, names)
        _values(axes, sorted({one.setting[key] for tried in curves.values() for one in tried}))
        seeds = max(one.num for tried in curves.values() for one in tried)
        title = textwrap.fill(study.title(study.epochs_tried, study.tried_in), 48)
        axes.set_title(style.text(title))
        of = "1 seed" if seeds == 1 else f"{seeds} seeds"
        axes.set(xlabel=style.text(key), ylabel=f"validation accuracy, %; {of}")
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], marker=style.marker(i), label=_short(name), **style.line(i))
             for i, name in enumerate(names)]  # fmt: skip
    lines.append(
        Line2D([], [], marker="o", ms=9, mfc="none", ls="", color="#555555", label="chosen")
    )
    style.legend_above(figure, lines, 4)
    yield CHOICE_NAME, figure


def _curves(study: Study) -> dict[str, Curves]:
    """By key, then by contestant: what was tried of numbers, in order, with the rest as chosen."""
    chosen = {one.contestant: one.setting for one in study.tried if one.is_chosen}
    found: dict[str, Curves] = {}
    for one in study.tried:
        best = chosen.get(one.contestant, {})
        for key, value in one.setting.items():
            if key in best and is_number(value) and _rest(key, one.setting) == _rest(key, best):
                found.setdefault(key, {}).setdefault(one.contestant, []).append(one)
    return {
        key: {name: _in_order(tried, key) for name, tried in curves.items()}
        for key, curves in found.items()
        if any(len(tried) > 1 for tried in curves.values())
    }


def _rest(key: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in setting.items() if other != key}


def _in_order(tried: Sequence[Tried], key: str) -> list[Tried]:
    return sorted(tried, key=lambda one: one.setting[key])


def _values(axes: Any, values: Sequence[float]) -> None:
    """The axis of what was tried: logarithmic where it can be, its values as far as they fit."""
    if values[0] <= 0:
        return
    axes.set_xscale("log")
    shown: list[float] = []
    for value in values:
        if not shown or value >= APART * shown[-1]:
            shown.append(value)
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()


def _end_below(axes: Any, curves: Curves, key: str, names: Sequence[str]) -> None:
    """Ends the axis where the best are still told apart; what lies below is told in figures.

    That is three times as far below the best as the quarter of the values that is worst.
    """
    means = {(name, one.setting[key]): one.mean for name, of in curves.items() for one in of}
    ordered = sorted(means.values())
    best, usual = ordered[-1], ordered[-1] - ordered[len(ordered) // 4]
    low = best - 3 * usual
    if not usual or ordered[0] >= low:
        return
    axes.set_ylim(low, best + 0.4 * usual)
    times: Counter[float] = Counter()
    for (name, value), mean in sorted(means.items(), key=lambda item: item[1]):
        if mean < low:
            place = (0, 2 + 7 * times[value])
            look = {"ha": "center", "fontsize": 6, "color": style.color(names.index(name))}
            axes.annotate(f"↓ {mean:.1f}", (value, low), place, textcoords="offset points", **look)
            times[value] += 1


def _curve(axes: Any, tried: Sequence[Tried], key: str, index: int) -> None:
    x, mean = [one.setting[key] for one in tried], [one.mean for one in tried]
    axes.plot(x, mean, marker=style.marker(index), **style.line(index))
    if not any(math.isnan(one.error) for one in tried):
        low, high = ([one.mean + side * one.error for one in tried] for side in (-1, 1))
        axes.fill_between(x, low, high, color=style.color(index), alpha=0.18, linewidth=0)
    for one in tried:
        if one.is_chosen:
            ring = {"mfc": "none", "color": style.color(index)}
            axes.plot([one.setting[key]], [one.mean], "o", ms=9, **ring)
