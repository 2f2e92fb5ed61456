"""A study on the terminal: what it will do, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from rich.table import Table as Grid

from crsam.lab.experiment.comparison import Spread
from crsam.lab.experiment.fair.jobs import Job, Progress, said
from crsam.lab.experiment.fair.verdict import (
    Row,
    Tried,
    Verdict,
    mean_over,
    over,
    sensitivity,
    verdict,
)
from crsam.lab.experiment.tables import console, with_spread
from crsam.lab.interval import Interval


def show_plan(progress: Progress) -> None:
    """All runs, a line for those that differ in seed or setting alone, and how long they take."""
    grid = _grid(
        "", "stage", "contestant", "setting", "seeds", "epochs", "runs", "done", "a run", "left"
    )
    total: list[float | None] = []
    jobs = _by_contestant(progress.jobs)
    for (stage, name), same in groupby(jobs, lambda job: (job.stage, job.contestant)):
        group = list(same)
        each = progress.seconds(group[0])
        left = sum(job.result is None for job in group)
        total.append(None if each is None else each * left)
        grid.add_row(
            stage,
            name,
            _settings(group),
            _spans(list(dict.fromkeys(job.recipe.seed for job in group))),
            _epochs(group[0]),
            str(len(group)),
            str(len(group) - left),
            _duration(each),
            _duration(total[-1]),
        )
    console().print(grid)
    if progress.study.choose is not None and progress.study.choose.widen:
        print("\nWhere the first or last value of a grid is best, more are tried beyond it.")
    known = [seconds for seconds in total if seconds is not None]
    if not known:
        print(f"\n{len(progress.jobs)} runs; how long they take is known once the first are done.")
        return
    more = " and what is not known yet" if None in total else ""
    print(
        f"\n{len(progress.jobs)} runs, {_duration(sum(known))}{more} to go (minutes:seconds, hours "
        "before them), by what finished\nruns took or, before there are any, the study's file says "
        "of its author's machine."
    )


def show_verdict(progress: Progress) -> None:
    """The tables of a study, or of what has been done of it."""
    found = verdict(progress)
    if found.tried:
        _show_tried(found.tried)
    if found.rows:
        _show_rows(found, progress)
    for each in found.at_an_edge:
        print(f"{each} is at the edge of what was tried: a wider grid may have a better one.")
    if not progress.is_complete:
        done = sum(job.result is not None for job in progress.jobs)
        print(f"{done} of {len(progress.jobs)} runs are done; the same command goes on from here.")


def _show_tried(tried: Sequence[Tried]) -> None:
    keys = list(dict.fromkeys(key for each in tried for key in each.setting))
    for key in keys:
        values = sorted({each.setting[key] for each in tried if key in each.setting}, key=_rank)
        curves = over(tried, key)
        if not curves:
            continue
        others = ", the rest as chosen" if len(keys) > 1 else ""
        seeds = max(each.accuracy.num for each in tried)
        means = f", means over {seeds} seeds" if seeds > 1 else ""
        common = [value for value in values if all(value in each for each in curves.values())]
        compared = ("mean", "best − worst") if len(common) > 1 else ()
        grid = _grid(f"Validation accuracy in % by {key}{others}{means}", "contestant",
                     *map(str, values), *compared)  # fmt: skip
        for name, curve in curves.items():
            cells = [f"{curve[value].mean:.2f}" if value in curve else "" for value in values]
            chosen = next(t.setting[key] for t in tried if t.is_chosen and t.contestant == name)
            cells[values.index(chosen)] = f"[bold]{cells[values.index(chosen)]} ←[/bold]"
            if compared:
                shared = {value: curve[value] for value in common}
                cells += [f"{mean_over(shared):.2f}", f"{sensitivity(shared):.2f}"]
            grid.add_row(name, *cells)
        console().print(grid)
        if 1 < len(common) < len(values):
            print(f"Mean and best − worst are over {', '.join(map(str, common))}, which all have.")
        print()


def _show_rows(found: Verdict, progress: Progress) -> None:
    reference = progress.study.reference
    grid = _grid("Test accuracy in % after the last epoch", "contestant", "setting", "epochs",
                 "accuracy", f"against {reference}", "95 % interval", "time")  # fmt: skip
    for row in found.rows:
        difference = row.difference
        grid.add_row(
            row.contestant + (f" ({row.num_diverged} diverged)" if row.num_diverged else ""),
            said(row.setting),
            str(row.epochs),
            with_spread(row.accuracy),
            "" if difference is None else f"{difference.mean:+.2f}",
            "" if difference is None else _ends(difference),
            "—" if math.isnan(row.time) else f"{row.time:.1f}×",
        )
    console().print(grid)
    seeds = progress.study.seeds
    means = "Mean ± standard deviation over the seeds {}; differences seed by seed."
    print("\n" + (means if len(seeds) > 1 else "Of one seed, {}.").format(_spans(seeds)))
    equal = progress.study.equal_time
    given = () if equal is None else equal.give
    _show_equal_time(found.at_equal_time, 2, "points", given)
    _show_losses(found.rows, reference)
    _show_equal_time(found.loss_at_equal_time, 4, "of test loss", given)
    _show_figures(found.rows)


def _show_equal_time(
    against: Sequence[tuple[str, Interval]], digits: int, unit: str, given: Sequence[str]
) -> None:
    """A line each; where several were given time, the names say against whom themselves."""
    for name, value in against:
        both = f"{name} against {given[0]}" if len(given) == 1 else name
        ends = f" ({_ends(value, digits)})" if _ends(value, digits) else ""
        print(f"At equal time: {both} {value.mean:+.{digits}f}{ends} {unit}")


def _show_losses(rows: Sequence[Row], reference: str) -> None:
    """Finer than accuracy, but it hangs on how sure of itself a net is, and so on ρ."""
    grid = _grid("\nTest loss after the last epoch", "contestant", "loss", f"against {reference}",
                 "95 % interval")  # fmt: skip
    for row in rows:
        difference = row.loss_difference
        grid.add_row(
            row.contestant,
            "—" if math.isnan(row.loss.mean) else f"{row.loss.mean:.4f}",
            "" if difference is None else f"{difference.mean:+.4f}",
            "" if difference is None else _ends(difference, 4),
        )
    console().print(grid)


def _show_figures(rows: Sequence[Row]) -> None:
    """How flat the models are, a table for each set of images they were measured on."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    for images in dict.fromkeys(name.partition(", ")[2] for name in names):
        own = [name for name in names if name.partition(", ")[2] == images]
        title = "\nHow flat the final models are" + (f" on {images} images" if images else "")
        headings = [name.partition(", ")[0].replace("_", " ") for name in own]
        grid = _grid(title, "contestant", *headings)
        for column in grid.columns[1:]:
            column.no_wrap = False  # the headings
        for row in rows:
            cells = [_figure(row.figures[name]) if name in row.figures else "" for name in own]
            grid.add_row(row.contestant, *cells)
        console().print(grid)


def _epochs(job: Job) -> str:
    """Of a run at equal time a guess, until the others have shown the factor."""
    return (
        f"~{job.epochs}" if job.stage == "equal-time" and job.setting is None else str(job.epochs)
    )


def _grid(title: str, *headings: str) -> Grid:
    grid = Grid(title=title or None, title_justify="left", box=None, pad_edge=False,
                padding=(0, 2, 0, 0))  # fmt: skip
    for heading in headings:
        text = heading in ("stage", "contestant", "setting", "seeds")
        grid.add_column(heading, justify="left" if text else "right", no_wrap=heading != "setting")
    return grid


def _by_contestant(jobs: Sequence[Job]) -> list[Job]:
    """In order of stages, then of contestants."""
    names = list(dict.fromkeys((job.stage, job.contestant) for job in jobs))
    return sorted(jobs, key=lambda job: names.index((job.stage, job.contestant)))


def _settings(jobs: Sequence[Job]) -> str:
    if jobs[0].setting is None:
        return "to be chosen"
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for key, value in (job.setting or {}).items():
            values.setdefault(key, {})[said({"": value}, "")] = None
    return "; ".join(f"{key} = {', '.join(found)}" for key, found in values.items())


def _rank(value: object) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if isinstance(value, int | float) else 0.0, str(value)


def _ends(value: Interval, digits: int = 2) -> str:
    ends = f"{value.low:+.{digits}f} to {value.high:+.{digits}f}"
    return "" if math.isnan(value.low) else ends


def _figure(value: Spread) -> str:
    if math.isnan(value.mean):
        return "—"
    return f"{value.mean:,.0f}" if 1000 <= abs(value.mean) < 1e6 else f"{value.mean:.3g}"


def _spans(seeds: Sequence[int]) -> str:
    """Numbers in a row as a span, where that is shorter.

    Example:
        >>> _spans([0, 1, 2]), _spans([7, *range(100, 116)])
        ('0 1 2', '7 100–115')
    """
    words: list[str] = []
    for _, group in groupby(enumerate(seeds), lambda pair: pair[1] - pair[0]):
        row = [seed for _, seed in group]
        words += map(str, row) if len(row) < 4 else [f"{row[0]}–{row[-1]}"]
    return " ".join(words)


def _duration(seconds: float | None) -> str:
    """Such as ``1:05`` or ``2:00:10``.

    Example:
        >>> _duration(65), _duration(None)
        ('1:05', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
