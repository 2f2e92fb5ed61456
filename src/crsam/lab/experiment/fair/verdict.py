"""What a study says: who did what, with which certainty, and how much hangs on the choice."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from crsam.lab.experiment.comparison import Spread, spread
from crsam.lab.experiment.fair.jobs import Job, Progress, per_epoch
from crsam.lab.experiment.values import Table
from crsam.lab.interval import Interval, interval


@dataclass(frozen=True)
class Tried:
    """One setting of one contestant, on the validation images."""

    contestant: str
    setting: Table
    accuracy: Spread
    num_diverged: int
    is_chosen: bool


@dataclass(frozen=True)
class Row:
    """One contestant on the test set."""

    contestant: str
    setting: Table
    epochs: int
    accuracy: Spread
    difference: Interval | None
    """To the reference, seed by seed; None for itself."""
    loss: Spread
    loss_difference: Interval | None
    time: float
    """Of a run, relative to the reference's: epochs, and seconds of an epoch."""
    num_diverged: int
    figures: Mapping[str, Spread]
    """How flat the models are, by name; with the images that it was measured on."""


@dataclass(frozen=True)
class Verdict:
    """All tables of a study; each has what is there so far."""

    tried: tuple[Tried, ...]
    rows: tuple[Row, ...]
    at_equal_time: tuple[tuple[str, Interval], ...]
    """Against those that were given more epochs, whoever takes as long: name and difference."""
    loss_at_equal_time: tuple[tuple[str, Interval], ...]
    at_an_edge: tuple[str, ...]
    """Contestants that chose the first or last of a range, as "NAME: rho = 0.4"."""

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "tried": [_plain(tried) for tried in self.tried],
            "rows": [_plain(row) for row in self.rows],
            "at_equal_time": {name: asdict(value) for name, value in self.at_equal_time},
            "loss_at_equal_time": {name: asdict(v) for name, v in self.loss_at_equal_time},
            "at_an_edge": list(self.at_an_edge),
        }


def verdict(progress: Progress) -> Verdict:
    """The tables of what has been done."""
    finals = _done(progress.of("final"))
    longer = _done(progress.of("equal-time"))
    reference = {j.recipe.seed: j for j in finals if j.contestant == progress.study.reference}
    names = [n for n in progress.study.contestants if any(j.contestant == n for j in finals)]
    rows = [_row(n, [j for j in finals if j.contestant == n], reference) for n in names]
    for name in dict.fromkeys(job.contestant for job in longer):
        mine = [job for job in longer if job.contestant == name]
        rows.append(_row(_at_length(name), mine, reference))
    return Verdict(
        _tried(progress),
        tuple(rows),
        tuple(_at_equal_time("test_accuracy", progress, names)),
        tuple(_at_equal_time("test_loss", progress, names)),
        tuple(_edges(progress)),
    )


def over(tried: Sequence[Tried], key: str) -> dict[str, dict[Any, Spread]]:
    """By contestant: the accuracy for each value of one key, the others as chosen.

    Args:
        tried: All settings, and which were chosen.
        key: Such as ``"rho"``.
    """
    found: dict[str, dict[Any, Spread]] = {}
    chosen = {each.contestant: each.setting for each in tried if each.is_chosen}
    for each in tried:
        if key not in each.setting or each.contestant not in chosen:
            continue
        rest = {k: v for k, v in chosen[each.contestant].items() if k != key}
        if {k: v for k, v in each.setting.items() if k != key} == rest:
            found.setdefault(each.contestant, {})[each.setting[key]] = each.accuracy
    return found


def _done(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.result is not None]


def _row(name: str, jobs: Sequence[Job], reference: Mapping[int, Job]) -> Row:
    results = [job.result for job in jobs if job.result is not None]
    setting = jobs[0].setting
    assert setting is not None
    itself = all(reference.get(job.recipe.seed) is job for job in jobs)

    def difference(of: str) -> Interval | None:
        found = _differences(of, jobs, reference)
        return None if itself or not found else interval(found)

    return Row(
        name,
        setting,
        jobs[0].epochs,
        spread([r["test_accuracy"] for r in results]),
        difference("test_accuracy"),
        spread([r["test_loss"] for r in results]),
        difference("test_loss"),
        _time(jobs) / _time(list(reference.values())) if reference else float("nan"),
        sum(r["diverged_at"] is not None for r in results),
        _figures(jobs),
    )


def _figures(jobs: Sequence[Job]) -> dict[str, Spread]:
    """Those of every result, or, where there are measures, those in their place."""
    found: dict[str, list[float | None]] = {}
    for job in jobs:
        assert job.result is not None
        own = {name: job.result[name] for name in ("gradient_norm", "sharpness")}
        for name, value in (job.measures or own).items():
            found.setdefault(name, []).append(value)
    return {name: spread(values) for name, values in found.items()}


def _at_equal_time(
    of: str, progress: Progress, names: Sequence[str]
) -> Iterator[tuple[str, Interval]]:
    equal = progress.study.equal_time
    given = () if equal is None else equal.give
    for i, other in enumerate(given):
        longer = _done(progress.of("equal-time", other))
        competing = {n: _done(progress.of("final", n)) for n in names if n != other}
        competing = {
            n: jobs for n, jobs in competing.items() if _take_as_long(progress, jobs, longer)
        }
        competing |= {_at_length(n): _done(progress.of("equal-time", n)) for n in given[i + 1 :]}
        for name, mine in competing.items():
            found = _differences(of, mine, {job.recipe.seed: job for job in longer})
            if found:
                yield (f"{name} against {other}" if len(given) > 1 else name), interval(found)


def _at_length(name: str) -> str:
    return f"{name}, equal time"


def _take_as_long(progress: Progress, mine: Sequence[Job], longer: Sequence[Job]) -> bool:
    """Whether to compare them at equal time: the one it was meant for, and others within 25 %."""
    equal = progress.study.equal_time
    assert equal is not None
    if not longer or mine[0].contestant == equal.of:
        return bool(longer)
    return abs(_time(mine) / _time(longer) - 1) < 0.25  # a busy machine's clock is no better


def _time(jobs: Sequence[Job]) -> float:
    each = per_epoch(jobs, jobs[0].contestant, jobs[0].stage)
    assert each is not None
    return each * jobs[0].epochs


def _differences(of: str, jobs: Sequence[Job], reference: Mapping[int, Job]) -> list[float]:
    """Seed by seed, where both have such a value: of a run that diverged, there is no loss."""
    pairs = [(job.result, reference[job.recipe.seed].result) for job in jobs
             if job.recipe.seed in reference]  # fmt: skip
    return [a[of] - b[of] for a, b in pairs if a and b and None not in (a[of], b[of])]


def _tried(progress: Progress) -> tuple[Tried, ...]:
    found: dict[tuple[str, Table], list[Any]] = {}
    for job in _done(progress.of("choose")):
        assert job.setting is not None
        found.setdefault((job.contestant, job.setting), []).append(job.result)
    return tuple(
        Tried(
            name,
            setting,
            spread([r["validation_accuracy"] for r in results]),
            sum(r["diverged_at"] is not None for r in results),
            progress.chosen.get(name) == setting,
        )
        for (name, setting), results in found.items()
    )


def _edges(progress: Progress) -> list[str]:
    found = []
    for name, setting in progress.chosen.items():
        for key, value in setting.items():
            values = {job.setting[key] for job in progress.of("choose", name) if job.setting}
            ordered = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if ordered and len(values) > 1 and value in (min(values), max(values)):
                found.append(f"{name}: {key} = {value}")
    return found


def _plain(record: Tried | Row) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: value_of(inner) for key, inner in value.items()}
        return vars(value) if isinstance(value, Spread | Interval) else value

    return {name: value_of(value) for name, value in vars(record).items()}


def sensitivity(curve: Mapping[Any, Spread]) -> float:
    """How much accuracy hangs on the choice: the best of the means less the worst."""
    means = [value.mean for value in curve.values()]
    return max(means) - min(means)


def mean_over(curve: Mapping[Any, Spread]) -> float:
    """The accuracy that a value drawn blindly from the range would give."""
    return statistics.fmean(value.mean for value in curve.values())
