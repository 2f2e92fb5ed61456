"""Summaries of ``crsam study``: who is ahead of whom; seeds of several studies put together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crsam._files import read_json
from crsam.errors import UserError
from crsam.lab._same import Origin, different_sets
from crsam.lab._tables import flat
from crsam.lab.interval import Interval, interval
from crsam.lab.report.groups import changes_nothing, is_number

FILE = "study.json"
"""The summary in a study's own folder."""
KIND = "crsam study"
EPOCHS = "train.epochs"


@dataclass(eq=False)
class Contestant:
    """Runs that differ in their seed alone."""

    name: str
    source: str
    """The summary that has it, of several the first."""
    settings: dict[str, Any]
    """The recipe by dotted keys, without what changes nothing, and the method's options."""
    takes_as_long: bool = False
    """As a reference that was given more epochs."""
    epochs: set[int] = field(default_factory=set)
    """Of the runs; of those at equal time each summary may have its own number."""
    accuracies: dict[int, float] = field(default_factory=dict)
    """On the test set, in %, by seed."""
    diverged: set[int] = field(default_factory=set)
    """Seeds."""

    def ahead_of(self, other: Contestant | None) -> Interval | None:
        """By how much, seed by seed; None where no seed is in both."""
        theirs = {} if other is None else other.accuracies
        both = sorted(self.accuracies.keys() & theirs.keys())
        return interval([self.accuracies[seed] - theirs[seed] for seed in both]) if both else None


@dataclass(frozen=True)
class Tried:
    """One setting of one contestant, on validation images."""

    contestant: str
    setting: Mapping[str, Any]
    mean: float
    """Of the accuracy in %, over seeds."""
    error: float
    """Its standard error; NaN for one seed."""
    num: int
    is_chosen: bool


@dataclass(frozen=True)
class Lead:
    """How far a contestant is ahead of the reference."""

    contestant: Contestant
    label: str
    at_equal_epochs: Interval | None
    at_equal_time: Interval | None
    """Of a reference that was given as much time."""


@dataclass
class Study:
    """What a summary says, or several that ask the same of other seeds."""

    data: str
    """And the model: such as ``resnet18 on cifar10``."""
    reference: str
    sources: list[str]
    final: list[Contestant] = field(default_factory=list)
    """Of as many epochs each."""
    longer: list[Contestant] = field(default_factory=list)
    """Trained once more, for as long as a slower one takes."""
    tried: list[Tried] = field(default_factory=list)
    tried_in: list[str] = field(default_factory=list)
    """The sources of these."""
    epochs_tried: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def title(self, epochs: set[int], sources: Sequence[str]) -> str:
        """Model, data, these epochs, and where it is from."""
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        return f"{self.data}, {span(epochs)} epochs ({sources[0]}{more})"

    @property
    def first(self) -> Contestant | None:
        """The reference, with as many epochs as the others."""
        return next((one for one in self.final if one.name == self.reference), None)

    def leads(self) -> Iterator[Lead]:
        """Of every other contestant that shares a seed; those with more epochs last."""
        later = next((one for one in self.longer if one.name == self.reference), None)
        for one in (*self.final, *self.longer):
            if one.name == self.reference:
                continue
            is_longer = one in self.longer
            fair = later if is_longer or one.takes_as_long else None
            found = None if is_longer else one.ahead_of(self.first), one.ahead_of(fair)
            if any(found):
                yield Lead(one, self._label(one), *found)

    def left_out(self) -> list[str]:
        """A line for each contestant that has no lead."""
        shown = [lead.contestant for lead in self.leads()]
        return [
            f"{one.source}: {one.name} shares no tested seed with {self.reference}: not drawn"
            for one in (*self.final, *self.longer)
            if one.name != self.reference and one not in shown
        ]

    def _label(self, one: Contestant) -> str:
        """The name, its source where there is another one of it, epochs, what became of it."""
        place = self.longer if one in self.longer else self.final
        again = sum(other.name == one.name for other in place) > 1
        words = one.name + (f" ({one.source})" if again else "")
        words += f", {span(one.epochs)} epochs" if place is self.longer else ""
        return words + (f" ({len(one.diverged)} diverged)" if one.diverged else "")


def span(numbers: set[int]) -> str:
    """Such as ``60``, or ``60 to 78``.

    Example:
        >>> span({60}), span({60, 78})
        ('60', '60 to 78')
    """
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


def summaries(path: Path) -> list[Path]:
    """The file itself, or those in a folder and of the studies in it."""
    if path.is_file():
        return [path]
    own = sorted(file for depth in ("", "*/", "*/*/") for file in path.glob(depth + FILE))
    return own + [file for file in sorted(path.glob("*.json")) if _is_summary(file)]


def _is_summary(file: Path) -> bool:
    """Whether it is one under another name than that in a study's own folder."""
    try:
        return file.name != FILE and (read_json(file) or {}).get("kind") == KIND
    except UserError:
        return False


def read_studies(paths: Sequence[str | Path]) -> tuple[list[Study], list[str]]:
    """The studies in these files; where the reference was trained alike, they are one.

    Args:
        paths: Summaries, studies' folders, or folders of such.

    Returns:
        The studies, and a line for each file that is not the summary of one.
    """
    files = [file for path in paths for file in summaries(Path(path))]
    files = list({file.resolve(): file for file in files}.values())
    found: list[Study] = []
    problems: list[str] = []
    contents: list[tuple[Path, str, dict[str, Any]]] = []
    for file, name in zip(files, _names(files)):
        try:
            contents.append((file, name, _content(file)))
        except UserError as error:
            problems.append(str(error))
    sets = different_sets([_origin(content) for _, _, content in contents])
    for (file, name, content), images in zip(contents, sets):
        try:
            study = _study(file, name, content, images)
        except UserError as error:
            problems.append(str(error))
            continue
        same = next((other for other in found if _ask_the_same(study, other)), None)
        if same is None:
            found.append(study)
        else:
            _join(same, study)
    return found, problems


def _names(files: Sequence[Path]) -> list[str]:
    """The end of each path, as much of it as tells them apart."""
    whole = [(file.parent if file.name == FILE else file.with_suffix("")).resolve().parts
             for file in files]  # fmt: skip
    ends: list[str] = []
    for parts in whole:
        length = 1
        while length < len(parts) and sum(o[-length:] == parts[-length:] for o in whole) > 1:
            length += 1
        ends.append("/".join(parts[-length:]))
    return ends


def _content(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if content is None or content.get("kind") != KIND:
        raise UserError(f"{file} is not the summary of a study, as crsam study writes it")
    return content


def _origin(content: Mapping[str, Any]) -> Origin:
    recipe = content.get("recipe")
    table = recipe.get("data") if isinstance(recipe, dict) else None
    given = table if isinstance(table, dict) else {}
    return Origin(given.get("name"), given.get("root"), content.get("images"))


def _study(file: Path, source: str, content: Mapping[str, Any], images: str) -> Study:
    try:
        return _read(content, source, images)
    except KeyError as error:
        raise UserError(f"{file} is not a whole summary: it has no {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not a whole summary: {error}") from error


def _read(content: Mapping[str, Any], source: str, images: str) -> Study:
    recipe, verdict = flat(content["recipe"]), content["verdict"]
    study = Study(
        f"{recipe['model.name']} on {recipe['data.name']}", content["reference"], [source]
    )
    for run in content["runs"]:
        whole = recipe | run["changes"]
        if run["stage"] == "choose":
            study.epochs_tried.add(whole[EPOCHS])
            continue
        place = study.longer if run["stage"] == "equal-time" else study.final
        options = flat({"options": (content.get("options") or {}).get(run["contestant"]) or {}})
        one = Contestant(run["contestant"], source, _settings({**whole, **options}, images))
        one.epochs.add(whole[EPOCHS])
        if place is study.longer:
            del one.settings[EPOCHS]
        if run.get("diverged_at") is not None:
            one.diverged.add(run["seed"])
        if is_number(run["test_accuracy"]):
            one.accuracies[run["seed"]] = run["test_accuracy"]
        _add(place, one)
    for one in study.final:  # of several that are given time, the verdict names the one as well
        pairs = {one.name, f"{one.name} against {study.reference}"}
        one.takes_as_long = not pairs.isdisjoint(verdict["at_equal_time"])
    if not content.get("is_complete", True):
        study.notes.append(f"{source}: unfinished; it is drawn as far as it goes")
    if study.longer and all(one.name != study.reference for one in study.longer):
        study.notes.append(f"{source}: at equal time {study.reference} was not trained: not drawn")
    for each in verdict["tried"]:
        of = each["accuracy"]
        if is_number(of["mean"]):
            error = of["std"] / math.sqrt(of["num"]) if is_number(of["std"]) else math.nan
            told = (of["mean"], error, of["num"], each["is_chosen"])
            study.tried.append(Tried(each["contestant"], each["setting"], *told))
            study.tried_in = [source]
    return study


def _add(place: list[Contestant], one: Contestant) -> bool:
    """Adds the runs to those of the same settings; whether they say the same of the same seeds."""
    known = next((other for other in place if _alike(one, other)), None)
    if known is None:
        place.append(one)
        return True
    again = known.accuracies.keys() & one.accuracies.keys()
    same = all(abs(known.accuracies[s] - one.accuracies[s]) < 0.011 for s in again)  # rounded
    known.accuracies = one.accuracies | known.accuracies
    known.settings = {**one.settings, **known.settings}
    known.takes_as_long |= one.takes_as_long
    known.epochs |= one.epochs
    known.diverged |= one.diverged
    return same


def _join(study: Study, more: Study) -> None:
    (source,) = more.sources
    study.sources.append(source)
    study.notes += more.notes
    for place, others in ((study.final, more.final), (study.longer, more.longer)):
        for one in others:
            if not _add(place, one):
                study.notes.append(
                    f"{source}: other results of {one.name} for seeds that are known"
                )
    known = {(one.contestant, str(one.setting)) for one in study.tried}
    contestants = {one.contestant for one in study.tried}
    if new := [one for one in more.tried if one.contestant not in contestants]:
        study.tried += new
        study.tried_in.append(source)
    study.epochs_tried |= more.epochs_tried
    for name in sorted(contestants):
        if any((name, str(o.setting)) not in known for o in more.tried if o.contestant == name):
            study.notes.append(f"{source}: what it tried of {name} is not drawn")


def _ask_the_same(study: Study, other: Study) -> bool:
    return study.first is not None and other.first is not None and _alike(study.first, other.first)


def _alike(one: Contestant, other: Contestant) -> bool:
    """Whether runs belong together; a key that came later is off in summaries that lack it."""
    ours, theirs = one.settings, other.settings
    both = ours.keys() & theirs.keys()
    keys = both | {key for key in ours.keys() ^ theirs.keys() if not key.startswith("options.")}
    return one.name == other.name and all(
        (ours.get(key) or 0) == (theirs.get(key) or 0) for key in keys
    )


def _settings(recipe: Mapping[str, Any], images: str) -> dict[str, Any]:
    """What decides the results of a run, by dotted keys; as `data.root` its images, if need be."""
    own = f"methods.{recipe['method']}."
    found = {
        key: value
        for key, value in recipe.items()
        if not changes_nothing(key) and (key.startswith(own) or not key.startswith("methods."))
    }
    return {**found, "data.root": images} if images else found
