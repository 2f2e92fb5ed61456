"""Runs that differ in nothing but their seed belong together; what differs between the others."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crsam.lab._same import different_sets, has_no_part
from crsam.lab._tables import flat
from crsam.lab.report.runs import Run


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one recipe, a seed each."""

    label: str
    """The method, and what else tells the group from others."""
    runs: tuple[Run, ...]
    recipe: Mapping[str, str]
    """By dotted keys, as text; without other methods' options and what changes nothing."""

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def contestant(self) -> str:
        """What a study calls all of its runs; empty if there is no such name."""
        names = {run.contestant for run in self.runs}
        return names.pop() if len(names) == 1 else ""

    @property
    def setting(self) -> dict[str, str]:
        """The recipe without the method: groups that share it may be compared seed by seed."""
        keys = self.recipe.keys() - {"method"}
        return {key: self.recipe[key] for key in keys if not key.startswith("method.")}


@dataclass(frozen=True)
class Mean:
    """Of the runs of a group."""

    mean: float
    std: float | None
    """Of single values; None for one run."""
    stderr: float | None
    num: int


def grouped(runs: Iterable[Run]) -> list[Group]:
    """The runs in groups: plain optimizers first, then SAM, its family, and CR-SAM.

    Runs on different photographs are in different groups; see `different_sets`.
    A run whose recipe cannot be read is a group of its own: there is no telling where it belongs.
    Nor does a seed count twice: a second run of one is in a second group.
    """
    found: dict[tuple[str, int], list[Run]] = {}
    recipes: dict[str, dict[str, str]] = {}
    times: Counter[tuple[str, int | None]] = Counter()
    every = list(runs)
    for run, images in zip(every, different_sets([run.origin for run in every])):
        relevant = _relevant(run, images)
        same = json.dumps(relevant, sort_keys=True) if run.recipe else run.name
        recipes[same] = relevant
        found.setdefault((same, times[same, run.seed]), []).append(run)
        times[same, run.seed] += 1
    alike = [Group("", tuple(_by_seed(mine)), recipes[same]) for (same, _), mine in found.items()]
    settings = list(dict.fromkeys(json.dumps(group.setting, sort_keys=True) for group in alike))
    alike.sort(
        key=lambda group: (
            not group.recipe,
            group.contestant.endswith("equal time"),
            settings.index(json.dumps(group.setting, sort_keys=True)),
            _rank(group),
        )
    )
    labels = [_label(group, alike) for group in alike]
    # Where these do not tell groups apart, the folders do.
    labels = [
        f"{group.contestant or group.method}, {_place(group.runs[0])}"
        if group.method and labels.count(label) > 1
        else label
        for label, group in zip(labels, alike)
    ]
    return [Group(_unique(k, labels), group.runs, group.recipe) for k, group in enumerate(alike)]


def differing(groups: Sequence[Group]) -> dict[str, list[str | None]]:
    """The keys whose values are not the same in all groups, with the value in each."""
    known = [group for group in groups if group.recipe]
    keys = dict.fromkeys(key for group in known for key in group.recipe)
    return {
        key: [group.recipe.get(key) for group in groups]
        for key in keys
        if len({group.recipe.get(key) for group in known}) > 1
    }


def reference_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """What a group is compared with: the first one of its setting; None for that one itself."""
    if not group.recipe:
        return None
    first = next(other for other in groups if other.recipe and other.setting == group.setting)
    return None if first is group else first


def mean_of(values: Iterable[Any]) -> Mean | None:
    """Mean and errors; None unless there are values and all of them are finite numbers.

    Example:
        >>> mean_of([1.0, 3.0]).mean, mean_of([1.0, None])
        (2.0, None)
    """
    given = list(values)
    numbers = [float(value) for value in given if is_number(value)]
    if not numbers or len(numbers) < len(given):
        return None
    std = statistics.stdev(numbers) if len(numbers) > 1 else None
    stderr = None if std is None else std / math.sqrt(len(numbers))
    return Mean(statistics.fmean(numbers), std, stderr, len(numbers))


def paired(key: str, group: Group, reference: Group) -> Mean | None:
    """The mean difference of a result to the reference's, over the seeds that both have."""
    theirs = {run.seed: run.result[key] for run in reference.runs if key in run.result}
    pairs = [
        (run.result[key], theirs[run.seed])
        for run in group.runs
        if key in run.result and run.seed in theirs
    ]
    return mean_of(a - b if is_number(a) and is_number(b) else None for a, b in pairs)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def changes_nothing(key: str) -> bool:
    """Whether a key of a recipe has no part in what a method computes.

    Example:
        >>> changes_nothing("log.every"), changes_nothing("train.epochs")
        (True, False)
    """
    return has_no_part(key, "seed", "log", "measure")


def _relevant(run: Run, images: str) -> dict[str, str]:
    """By dotted keys what decides the results of a run; as `data.root` its images, if need be."""
    tables = dict(run.recipe)
    methods = tables.pop("methods", None)
    own = methods.get(run.method) if isinstance(methods, dict) else None
    found = flat(tables) | flat({"method": own} if isinstance(own, dict) else {})
    told = {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in found.items()
        if not changes_nothing(key)
    }
    return {**told, "data.root": images} if images else told


def _by_seed(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.seed is None, run.seed or 0))


def _rank(group: Group) -> tuple[int, str]:
    if group.method == group.recipe.get("optimizer.name"):
        return 0, group.method
    return {"sam": 1, "crsam": 3}.get(group.method, 2), group.method


def _unique(index: int, labels: Sequence[str]) -> str:
    """The label, with a number if an earlier one is the same."""
    again = labels[:index].count(labels[index])
    return f"{labels[index]} ({again + 1})" if again else labels[index]


def _label(group: Group, groups: Sequence[Group]) -> str:
    """The method, and the values by which groups of the same method differ."""
    if not group.recipe or not group.method:
        return group.runs[0].name
    if group.contestant:
        return group.contestant
    same = [other for other in groups if other.recipe and other.method == group.method]
    apart = differing(same)
    telling = _telling(apart)
    index = same.index(group)
    words = [f"{_last(key)} {apart[key][index] or '—'}" for key in telling]
    return ", ".join([group.method, *words, *(["…"] if len(telling) < len(apart) else [])])


def _place(run: Run) -> str:
    """The folder of the run's group, or the run's own where that is all there is."""
    folder, _, seed = run.name.rpartition("/")
    return folder if folder and seed.startswith("seed") else run.name


def _last(key: str) -> str:
    """Of a dotted key, what says what it is.

    Example:
        >>> _last("method.rho"), _last("augment.name")
        ('rho', 'augment')
    """
    return key.removesuffix(".name").split(".")[-1]


def _telling(apart: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Up to three keys that tell groups from each other, names before numbers.

    Example:
        >>> forms = {"rho": ["0.1", "0.2"], "form": ["log", "linear"]}
        >>> _telling(forms), _telling({**forms, "rho": ["0.1", "0.2", "0.3"], "form": ["log"] * 3})
        (['form'], ['rho'])
    """
    found: list[str] = []
    told = 1
    for key in sorted(apart, key=lambda key: not any(map(_is_name, apart[key]))):
        parted = len(set(zip(*(apart[each] for each in (*found, key)))))
        if parted > told and len(found) < 3:
            found.append(key)
            told = parted
    return found


def _is_name(value: str | None) -> bool:
    try:
        json.loads(value or "null")
    except ValueError:
        return True
    return False
