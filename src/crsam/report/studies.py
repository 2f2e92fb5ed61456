"""Summaries of ``crsam study``: who is ahead of whom; seeds of several studies put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crsam._files import read_json
from crsam.errors import UserError
from crsam.interval import Interval, interval
from crsam.report.groups import changes_nothing, is_number

FILE = "study.json"
"""The summary in a study's own folder."""
KIND = "crsam study"


@dataclass
class Contestant:
    """Runs that differ in their seed alone."""

    name: str
    settings: Mapping[str, Any]
    """The recipe by dotted keys, without what changes nothing, and the method's options."""
    accuracies: dict[int, float] = field(default_factory=dict)
    """On the test set, in %, by seed."""

    @property
    def epochs(self) -> int:
        """That each of the runs has."""
        return int(self.settings["train.epochs"])

    def ahead_of(self, other: Contestant) -> Interval | None:
        """By how much, seed by seed; None where no seed is in both."""
        both = sorted(self.accuracies.keys() & other.accuracies.keys())
        return interval([self.accuracies[s] - other.accuracies[s] for s in both]) if both else None


@dataclass
class Tried:
    """One setting of one contestant, on validation images."""

    contestant: str
    setting: Mapping[str, Any]
    is_chosen: bool
    accuracies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Lead:
    """How far a contestant is ahead of the reference."""

    contestant: Contestant
    at_equal_epochs: Interval | None
    at_equal_time: Interval | None
    """Of a reference that was given as much time."""


@dataclass
class Study:
    """What a summary says, or several that ask the same of other seeds."""

    setup: str
    """Model, data, epochs."""
    reference: str
    sources: list[str]
    """Names of the summaries."""
    final: dict[str, Contestant] = field(default_factory=dict)
    """By name, of as many epochs each."""
    longer: dict[str, Contestant] = field(default_factory=dict)
    """Trained once more, for as long as a slower one takes."""
    as_long: set[str] = field(default_factory=set)
    """Those of ``final`` that take as long as the reference does in ``longer``."""
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """With where it is from."""
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return f"{self.setup} ({self.sources[0]}{more})"

    def leads(self) -> Iterator[Lead]:
        """Of every other contestant; those with more epochs last."""
        first, later = self.final.get(self.reference), self.longer.get(self.reference)
        for name, one in self.final.items():
            if name != self.reference and first is not None:
                fair = later if name in self.as_long else None
                yield Lead(one, one.ahead_of(first), None if fair is None else one.ahead_of(fair))
        for name, one in self.longer.items():
            if name != self.reference and later is not None:
                yield Lead(one, None, one.ahead_of(later))


def is_study(path: Path) -> bool:
    """Whether it is a file, as summaries are, or the folder of a study."""
    return path.is_file() or (path / FILE).is_file()


def read_studies(paths: Sequence[str | Path]) -> list[Study]:
    """The studies in these files; where the reference was trained alike, they are one.

    Args:
        paths: Summaries, or folders of studies.

    Raises:
        UserError: If one of them is not the summary of a study.
    """
    found: list[Study] = []
    for path in map(Path, paths):
        file = path / FILE if path.is_dir() else path
        name = path.name if path.is_dir() else path.stem
        content = read_json(file)
        if content is None or content.get("kind") != KIND:
            raise UserError(f"{file} is not the summary of a study, as crsam study writes it")
        try:
            study = _read(content, name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{file} is not a whole summary: {error!r}") from error
        same = next((other for other in found if _belong_together(study, other)), None)
        if same is None:
            found.append(study)
        else:
            _join(same, study, name)
    return found


def _read(content: Mapping[str, Any], name: str) -> Study:
    recipe, reference = _flat(content["recipe"]), content["reference"]
    study = Study("", reference, [name])
    for run in content["runs"]:
        who, accuracy = run["contestant"], run["test_accuracy"]
        if run["stage"] == "choose":
            _note(study.tried, run, content["chosen"].get(who))
            continue
        place = study.longer if run["stage"] == "equal-time" else study.final
        options = _flat({"options": (content.get("options") or {}).get(who) or {}})
        one = Contestant(who, _settings({**recipe, **run["changes"], **options}))
        if is_number(accuracy):
            place.setdefault(who, one).accuracies[run["seed"]] = accuracy
    given = list(study.longer)
    for pair in content["verdict"]["at_equal_time"]:
        who, _, other = (pair, "", given[0]) if len(given) == 1 else pair.rpartition(" against ")
        if other == reference:
            study.as_long.add(who)
    own = study.final.get(reference)
    epochs = recipe["train.epochs"] if own is None else own.epochs
    study.setup = f"{recipe['model.name']} on {recipe['data.name']}, {epochs} epochs"
    return study


def _note(tried: list[Tried], run: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> None:
    who, setting = run["contestant"], run["setting"]
    same = [one for one in tried if (one.contestant, one.setting) == (who, setting)]
    if not same:
        same = [Tried(who, setting, setting == chosen)]
        tried += same
    if is_number(run["validation_accuracy"]):
        same[0].accuracies.append(run["validation_accuracy"])


def _belong_together(study: Study, other: Study) -> bool:
    ours, theirs = (each.final.get(each.reference) for each in (study, other))
    return ours is not None and theirs is not None and _alike(ours, theirs)


def _join(study: Study, more: Study, name: str) -> None:
    for place, others in ((study.final, more.final), (study.longer, more.longer)):
        for one in others.values():
            known = place.get(one.name)
            if known is None or not _alike(one, known):
                who = one.name if known is None else f"{one.name} ({name})"
                place[who] = Contestant(who, one.settings, one.accuracies)
                continue
            again = known.accuracies.keys() & one.accuracies.keys()
            if any(known.accuracies[seed] != one.accuracies[seed] for seed in again):
                study.notes.append(f"{one.name}, {name}: other results for seeds that are known")
            known.accuracies = one.accuracies | known.accuracies
    study.sources.append(name)
    study.as_long |= more.as_long
    known_to_try = {one.contestant for one in study.tried}
    study.tried += [one for one in more.tried if one.contestant not in known_to_try]


def _alike(one: Contestant, other: Contestant) -> bool:
    """By what both say: an older summary lacks keys that came later."""
    both = one.settings.keys() & other.settings.keys()
    return one.name == other.name and all(one.settings[k] == other.settings[k] for k in both)


def _settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    own = f"methods.{recipe['method']}."
    return {
        key: value
        for key, value in recipe.items()
        if not changes_nothing(key) and (key.startswith(own) or not key.startswith("methods."))
    }


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tables.items():
        deeper = isinstance(value, Mapping)
        found |= _flat(value, f"{above}{name}.") if deeper else {above + name: value}
    return found
