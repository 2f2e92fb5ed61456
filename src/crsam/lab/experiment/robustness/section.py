"""What is written down of one set: accuracies, and means that say what they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crsam._files import read_json
from crsam.errors import UserError
from crsam.lab.robustness.constants import ALEXNET_ERRORS, NAMES, SEVERITIES
from crsam.lab.robustness.score import Corrupted

FILE = "robustness.json"

Section = dict[str, Any]
"""What `FILE` has of one set."""


class Reference(NamedTuple):
    """A model in whose errors a CE is measured."""

    name: str
    errors: Mapping[str, float]
    """In per cent."""


ALEXNET = Reference("AlexNet", {name: 100 * error for name, error in ALEXNET_ERRORS.items()})


def read_sections(folder: Path) -> dict[str, Section]:
    """What was found of a run before, by the name of the set."""
    return read_json(folder / FILE) or {}


def reference_run(folder: Path, name: str, about: Mapping[str, Any]) -> Reference:
    """Another run's errors on a set.

    Args:
        folder: Of the run.
        name: Of the set.
        about: How many images and classes it has here.

    Raises:
        UserError: If it was not evaluated on that.
    """
    section = read_sections(folder).get(name)
    if section is None:
        option = name.replace("_", "-")
        raise UserError(
            f"{folder} was not evaluated on this set: crsam evaluate {folder} --{option} DIR"
        )
    for key in ("num_images", "num_classes"):
        if section[key] != about[key]:
            raise UserError(
                f"{folder} was evaluated on another set: {key} is {section[key]} there, "
                f"{about[key]} here"
            )
    accuracy = {
        (corruption, severity): value
        for corruption, values in section["accuracy"].items()
        for severity, value in zip(SEVERITIES, values)
        if value is not None
    }
    return Reference(str(folder), Corrupted(accuracy).errors)


def section_of(
    score: Corrupted, missing: Sequence[str], reference: Reference | None = None
) -> Section:
    """The figures of a set with corruptions.

    Means are over corruptions with all severities. Where one is missing they are in
    ``"of_those_there"``, and those of the whole set are null: nobody takes one for the other.

    Args:
        score: What was found.
        missing: What was not there.
        reference: In whose errors the CE are; None: there are none.

    Raises:
        UserError: If the reference lacks a corruption.
    """
    means: dict[str, float | None] = {"mean_accuracy": score.mean_accuracy}
    relative: dict[str, float] = {}
    if reference is not None:
        if lacking := [name for name in score.names if name not in reference.errors]:
            raise UserError(f"{reference.name} was not evaluated on {', '.join(lacking)}")
        relative = score.relative_errors(reference.errors)
        means["mce"] = score.mce(reference.errors)
    return {
        "accuracy": {
            name: [score.accuracy.get((name, severity)) for severity in SEVERITIES]
            for name in NAMES
        },
        "errors": score.errors,
        "relative_to": None if reference is None else reference.name,
        "relative_errors": relative,
        "mean_accuracy": None,
        "mce": None,
        "num_corruptions": len(score.names),
        "missing": list(missing),
        **(means if score.names == NAMES else {"of_those_there": means}),
    }
