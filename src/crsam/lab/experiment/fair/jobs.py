"""The runs of a study: which there are, which are done, and what follows from those."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crsam._names import slug
from crsam.lab.experiment.fair.study import Study
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.journal import Result
from crsam.lab.experiment.literal import literal
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.restore import check_moved
from crsam.lab.experiment.values import Table

Stage = Literal["choose", "final", "equal-time"]


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    stage: Stage
    contestant: str
    setting: Table | None
    """What is tried, or was chosen; None: not chosen yet."""
    recipe: Recipe
    result: Result | None = None
    """Of a run that is done."""
    measures: Mapping[str, float] | None = None
    """Figures of its model, such as ``"hessian_trace, test"``, where they were asked for."""

    @property
    def place(self) -> Path:
        """Its folder in that of the study."""
        path = Path(self.stage) / slug(self.contestant)
        if self.stage == "choose":
            assert self.setting is not None
            path /= slug(said(self.setting, "=")) or "only"
        return path / f"seed{self.recipe.seed}"

    @property
    def epochs(self) -> int:
        return self.recipe.train.epochs


def said(setting: Mapping[str, Any], equals: str = " = ") -> str:
    """A setting in words.

    Example:
        >>> said({"rho": 0.1, "form": "log"})
        'rho = 0.1, form = log'
    """
    return ", ".join(f"{k}{equals}{literal(v)}".replace('"', "") for k, v in setting.items())


@dataclass(frozen=True)
class Progress:
    """A study as its folder shows it."""

    study: Study
    jobs: tuple[Job, ...]
    """All of them, in the order in which they are run."""
    chosen: Mapping[str, Table]
    """What each contestant has chosen; those are not in it that have not yet."""

    @property
    def pending(self) -> list[Job]:
        """Those that could be run now."""
        return [job for job in self.jobs if job.result is None and job.setting is not None]

    @property
    def num_done(self) -> int:
        return sum(job.result is not None for job in self.jobs)

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self.jobs)

    def of(self, stage: Stage, contestant: str | None = None) -> list[Job]:
        """The jobs of a stage, done or not."""
        return [j for j in self.jobs if j.stage == stage and contestant in (None, j.contestant)]

    def seconds(self, job: Job) -> float | None:
        """How long a run takes: as its contestant's last ones, or as the study says."""
        each = per_epoch(self.jobs, job.contestant)
        each = each or self.study.contestants[job.contestant].seconds_per_epoch
        if each is None:
            return None
        return each * trained_on(job) * job.epochs + self.study.overhead_seconds


def look(study: Study, folder: str | Path) -> Progress:
    """The runs of a study and those of them that are done."""
    folder = Path(folder)
    jobs = _read(study, folder, _to_choose(study))
    chosen: dict[str, Table] = {}
    for name in study.contestants:
        settings = study.settings(name)
        mine = [job for job in jobs if job.contestant == name]
        if len(settings) == 1:
            chosen[name] = settings[0]
            continue
        more = _beyond(study, folder, name, mine)
        jobs += more
        if all(job.result is not None for job in (*mine, *more)):
            chosen[name] = best((*mine, *more))
    finals = _read(study, folder, _final(study, chosen))
    more = _read(study, folder, _equal_time(study, chosen, finals, folder))
    return Progress(study, (*jobs, *finals, *more), chosen)


def is_done(study: Study, folder: Path, job: Job) -> bool:
    """Whether the folder has all that the study asks for of a run."""
    return _with_result(study, folder, job).result is not None


def best(jobs: Sequence[Job]) -> Table:
    """The setting of the highest mean validation accuracy; of equals, that of the lowest loss."""
    found: dict[Table, list[Result]] = {}
    for job in jobs:
        assert job.setting is not None and job.result is not None  # noqa: PT018
        found.setdefault(job.setting, []).append(job.result)

    def merit(setting: Table) -> tuple[float, float]:
        accuracy = [r["validation_accuracy"] for r in found[setting]]
        losses = [r["validation_loss"] for r in found[setting]]
        if any(r["diverged_at"] is not None for r in found[setting]) or None in losses:
            return -math.inf, -math.inf
        return statistics.fmean(accuracy), -statistics.fmean(losses)

    return max(found, key=merit)


def per_epoch(jobs: Iterable[Job], contestant: str, stage: Stage | None = None) -> float | None:
    """Seconds that an epoch of the whole set takes a contestant.

    Those of its fastest run: the others may have had to share the machine.
    """
    found = [
        job.result["seconds_per_epoch"] / trained_on(job)
        for job in jobs
        if job.contestant == contestant and job.result and stage in (None, job.stage)
    ]
    return min(found, default=None)


def trained_on(job: Job) -> float:
    """The share of the training set that is not held out."""
    data = job.recipe.data
    return (1 - data.test_share) * (1 - data.validation)


def _to_choose(study: Study) -> list[Job]:
    if study.choose is None:
        return []
    return [
        Job("choose", name, setting, study.recipe_to_choose(name, setting, seed))
        for seed in study.choose.seeds
        for name in study.contestants
        if len(settings := study.settings(name)) > 1  # or there is nothing to choose
        for setting in settings
    ]


def _beyond(study: Study, folder: Path, name: str, jobs: Sequence[Job]) -> list[Job]:
    """What is tried beyond the edges of the grid, one value after the other, where those are best.

    None as long as it is not known what is.
    """
    assert study.choose is not None
    left, found = dict(study.choose.widen), list(jobs)
    while all(job.result is not None for job in found):
        setting = best(found)
        tried = [job.setting for job in found if job.setting is not None]
        steps = {
            key: _next(setting[key], [s[key] for s in tried]) for key in setting if left.get(key)
        }
        key = next((key for key, value in steps.items() if value is not None), None)
        if key is None:
            break
        left[key] -= 1
        wider = Table({**setting, key: steps[key]})
        found += _read(
            study,
            folder,
            (
                Job("choose", name, wider, study.recipe_to_choose(name, wider, seed))
                for seed in study.choose.seeds
            ),
        )
    return found[len(jobs) :]


def _next(value: Any, values: Iterable[Any]) -> int | float | None:
    """The number beyond `value`, as far from it as it is from its neighbour; None: it has two.

    Example:
        >>> _next(0.4, [0.1, 0.2, 0.4]), _next(0.1, [0.1, 0.2, 0.4]), _next(0.2, [0.1, 0.2, 0.4])
        (0.8, 0.05, None)
    """
    line = sorted(set(values))
    if len(line) < 2 or value not in (line[0], line[-1]):
        return None
    near = line[1] if value == line[0] else line[-2]
    beyond = value * value / near if value * near > 0 else 2 * value - near
    whole = isinstance(value, int) and isinstance(near, int)
    beyond = round(beyond) if whole else float(f"{beyond:.3g}")
    return None if beyond in line else beyond


def _final(study: Study, chosen: Mapping[str, Table]) -> list[Job]:
    return [
        Job("final", n, chosen.get(n), study.recipe_of(n, chosen.get(n, Table()), seed))
        for seed in study.seeds
        for n in study.contestants
    ]


def _equal_time(
    study: Study, chosen: Mapping[str, Table], finals: Sequence[Job], folder: Path
) -> list[Job]:
    if study.equal_time is None:
        return []
    given = [_longer(study, n, chosen, finals, folder) for n in study.equal_time.give]
    return [job for of_seed in zip(*given) for job in of_seed]


def _longer(
    study: Study, name: str, chosen: Mapping[str, Table], finals: Sequence[Job], folder: Path
) -> list[Job]:
    equal = study.equal_time
    assert equal is not None
    factor = equal.factor.get(name)
    both = [job for job in finals if job.contestant in (name, equal.of)]
    if factor is None and all(job.result for job in both):
        more, less = (per_epoch(both, each, "final") for each in (equal.of, name))
        factor = more / less if more and less else None
    # Until the final runs have shown the factor, the epochs are a guess for the estimate alone.
    epochs = max(1, round(study.recipe.train.epochs * (factor or 1.5)))
    setting = None if factor is None else chosen.get(name)

    def jobs(epochs: int) -> list[Job]:
        recipes = [
            study.recipe_of(name, setting or {}, seed, {"train.epochs": epochs})
            for seed in study.seeds
        ]
        return [Job("equal-time", name, setting, recipe) for recipe in recipes]

    found = jobs(epochs)
    if name not in equal.factor:  # once measured, it holds: more seeds must not change it
        begun = [place for job in found if (place := RunFolder(folder / job.place)).begun]
        if begun:
            found = jobs(begun[0].recipe().train.epochs)
    return found


def _read(study: Study, folder: Path, jobs: Iterable[Job]) -> list[Job]:
    return [job if job.setting is None else _with_result(study, folder, job) for job in jobs]


def _with_result(study: Study, folder: Path, job: Job) -> Job:
    """The job as done, if it is, and measured where that is asked for.

    Raises:
        UserError: If what was done is not what the study asks for now.
    """
    place, wanted = RunFolder(folder / job.place), study.measure
    if place.result_file.exists() and place.recipe_file.exists():
        place.check_recipe(job.recipe)
        check_moved(place, job.recipe)
    result = place.result()
    if wanted is None or job.stage == "choose" or result is None or has_diverged(result):
        return replace(job, result=result)
    contents = {split: place.measures(split) for split in wanted.splits}
    if any(c is None or not {*wanted.metrics} <= c["metrics"].keys() for c in contents.values()):
        return job
    measures = {
        f"{name}, {split}": figure["value"]
        for split, content in contents.items()
        if content is not None
        for name, figure in content["metrics"].items()
    }
    return replace(job, result=result, measures=measures)


def has_diverged(result: Mapping[str, Any]) -> bool:
    """Then there is nothing to measure."""
    return result["diverged_at"] is not None
