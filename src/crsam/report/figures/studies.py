"""What studies say: who is ahead by how much, and how much hangs on the choice of a value."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crsam.interval import Interval
from crsam.report.figures import style
from crsam.report.groups import is_number
from crsam.report.studies import Lead, Study, Tried

LEADS_NAME = "study-leads"
CHOICE_NAME = "study-choice"
EPOCHS, TIME = "at equal epochs", "at equal time"
GAP = 0.5
"""Between two contestants, in lines."""
FAR = 10
"""An interval that ends so many times as far out as the next one is an arrow at the edge."""


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
        names[y + (len(bars) - 1) / 2] = _label(lead, study)
        for how, one in bars:
            _bar(axes, one, y, how, edge)
            numbers[y] = _number(one)
            y += 1
        y += GAP
    axes.set_yticks(list(names), list(names.values()))
    axes.set(xlim=(-edge, edge), ylim=(y - GAP - 0.3, -0.7))
    axes.set_title(style.text(study.title), loc="left")
    axes.set_xlabel(style.text(f"test accuracy less {study.reference}'s, points"))
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
    look: dict[str, Any] = {"color": style.color(0 if how == EPOCHS else 5), "zorder": 3}
    if abs(one.mean) > edge:
        look |= {"marker": "<" if one.mean < 0 else ">", "markersize": 6, "clip_on": False}
        axes.plot([math.copysign(edge, one.mean)], [y], **look)
        return
    if not math.isnan(one.low):
        axes.plot([one.low, one.high], [y, y], solid_capstyle="butt", **look)
    empty = {"markerfacecolor": "white"} if how == TIME else {}
    axes.plot([one.mean], [y], "o", ms=5, **look, **empty)


def _edge(found: Sequence[Interval]) -> float:
    """How far an axis goes either way."""
    ends = [[abs(v) for v in (one.mean, one.low, one.high) if not math.isnan(v)] for one in found]
    reach = sorted(map(max, ends))
    while len(reach) > 1 and reach[-1] > FAR * reach[-2]:
        reach.pop()
    return 1.1 * reach[-1] or 1.0


def _label(lead: Lead, study: Study) -> str:
    one, reference = lead.contestant, study.final.get(study.reference)
    other = reference is not None and one.epochs != reference.epochs
    longer = f", {one.epochs} epochs" if other else ""
    seeds = len(one.accuracies)
    return style.text(f"{one.name}{longer} ({seeds} seed{'s' * (seeds > 1)})")


def _number(one: Interval) -> str:
    ends = "" if math.isnan(one.low) else f" ({one.low:+z.2f} to {one.high:+z.2f})"
    return f"{one.mean:+z.2f}{ends}".replace("-", "−")


def _key(figure: Any, found: Sequence[Lead]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    if any(lead.at_equal_epochs for lead in found):
        handles.append(Line2D([], [], color=style.color(0), marker="o", ms=5, label=EPOCHS))
    if any(lead.at_equal_time for lead in found):
        handles.append(Line2D([], [], color=style.color(5), marker="o", ms=5, mfc="white",
                              label=f"{TIME}, the reference with more epochs"))  # fmt: skip
    style.legend_above(figure, handles, 2)


def choice(studies: Sequence[Study]) -> Iterator[tuple[str, Any]]:
    """Validation accuracy over the values that were tried, the others as chosen."""
    panels = [(study, key, curves) for study in studies for key, curves in _curves(study).items()]
    if not panels:
        return
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    figure = style.new_figure(0.4 + 2.4 * rows, style.WIDTH * max(columns, 1.3) / 2)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in grid[len(panels) :]:
        unused.remove()
    names = list(dict.fromkeys(name for _, _, curves in panels for name in curves))
    for axes, (study, key, curves) in zip(grid, panels):
        for name, tried in curves.items():
            _curve(axes, tried, key, names.index(name))
        values = sorted({one.setting[key] for tried in curves.values() for one in tried})
        _end_below(axes, curves, key, names)
        if values[0] > 0:
            axes.set_xscale("log")
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        seeds = max(len(one.accuracies) for tried in curves.values() for one in tried)
        of = f"{seeds} seed{'s' * (seeds > 1)}"
        axes.set_title(style.text(study.setup))
        axes.set(xlabel=style.text(key), ylabel=f"validation accuracy, %; {of}")
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], marker=style.MARKERS[i % 8], label=style.text(name), **style.line(i))
             for i, name in enumerate(names)]  # fmt: skip
    style.legend_above(figure, lines, 4)
    yield CHOICE_NAME, figure


def _curves(study: Study) -> dict[str, dict[str, list[Tried]]]:
    """By key, then by contestant: what was tried of numbers, in order, with the rest as chosen."""
    chosen = {one.contestant: one.setting for one in study.tried if one.is_chosen}
    found: dict[str, dict[str, list[Tried]]] = {}
    for one in study.tried:
        best = chosen.get(one.contestant)
        if best is None or not one.accuracies:
            continue
        for key, value in one.setting.items():
            if is_number(value) and _without(key, one.setting) == _without(key, best):
                found.setdefault(key, {}).setdefault(one.contestant, []).append(one)
    return {
        key: {name: _in_order(tried, key) for name, tried in curves.items()}
        for key, curves in found.items()
        if any(len(tried) > 1 for tried in curves.values())
    }


def _in_order(tried: Sequence[Tried], key: str) -> list[Tried]:
    return sorted(tried, key=lambda one: one.setting[key])


def _without(key: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in setting.items() if other != key}


def _end_below(axes: Any, curves: Mapping[str, Sequence[Tried]], key: str, names: Any) -> None:
    """Ends the axis where the best are still told apart; what lies below is an arrow, in figures.

    That is three times as far below the best as the quarter of the values that is worst.
    """
    means = {(name, one.setting[key]): statistics.fmean(one.accuracies)
             for name, tried in curves.items() for one in tried}  # fmt: skip
    ordered = sorted(means.values())
    best, usual = ordered[-1], ordered[-1] - ordered[len(ordered) // 4]
    low = best - 3 * usual
    if ordered[0] >= low:
        return
    axes.set_ylim(low, best + 0.4 * usual)
    times: Counter[float] = Counter()
    for (name, value), mean in sorted(means.items(), key=lambda item: item[1]):
        if mean < low:
            look = {"color": style.color(names.index(name)), "clip_on": False}
            axes.plot([value], [low], "v", **look)
            place = (-5, 3 + 7 * times[value])
            axes.annotate(f"{mean:.1f}", (value, low), place, textcoords="offset points",
                          ha="right", fontsize=6, color=look["color"])  # fmt: skip
            times[value] += 1


def _curve(axes: Any, tried: Sequence[Tried], key: str, index: int) -> None:
    x = [one.setting[key] for one in tried]
    mean = [statistics.fmean(one.accuracies) for one in tried]
    axes.plot(x, mean, marker=style.MARKERS[index % 8], **style.line(index))
    if all(len(one.accuracies) > 1 for one in tried):
        error = [statistics.stdev(one.accuracies) / math.sqrt(len(one.accuracies)) for one in tried]
        low, high = ([m + s * e for m, e in zip(mean, error)] for s in (-1, 1))
        axes.fill_between(x, low, high, color=style.color(index), alpha=0.18, linewidth=0)
    for one, value in zip(tried, mean):
        if one.is_chosen:
            axes.plot([one.setting[key]], [value], "o", ms=9, mfc="none", color=style.color(index))
