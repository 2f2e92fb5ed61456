"""The paper's tables, and what our own results have to set beside them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

import crsam
from crsam._tables import flat
from crsam.errors import UserError
from crsam.experiment.comparison import Spread, spread

TABLES = ("cifar", "imagenet", "geometry")


def printed(table: str) -> dict[str, Any]:
    """The figures of one of the paper's tables, by model or method.

    Example:
        >>> printed("cifar")["resnet18"]["cifar10"]["basic"]["crsam"]
        [96.95, 0.13]
    """
    content = (files("crsam") / "experiment" / "paper.toml").read_text()
    return tomllib.loads(content)[table]


@dataclass(frozen=True)
class Setup:
    """What a figure is of: the part of a recipe that the paper's tables tell apart."""

    data: str
    model: str
    augment: str
    method: str
    """``"base"`` for the optimizer alone."""


@dataclass(frozen=True)
class Ours:
    """Runs of one set-up that differ in their seed alone."""

    setup: Setup
    contestant: str
    epochs: int
    accuracy: Spread
    figures: Mapping[str, Spread]
    """Measured on test images."""
    hardware: str
    source: str
    """The file."""
    weight_decay: float = 0.0
    date: str = ""
    """Of the last run."""
    rho: float | None = None
    num_changed: int = 0
    """Options of the method that are not the recipe's own."""


def results(folder: str | Path | None = None) -> list[Ours]:
    """All of our own figures that stand in the files of a folder.

    Args:
        folder: With summaries of ``crsam study`` or the ``comparison.json`` of ``crsam compare``,
            under any name; None: those that come with the package.

    Raises:
        UserError: If there is no such folder, or a file of it is not JSON.
    """
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"there is no folder {str(folder)!r} of results")
    place = _shipped() if folder is None else Path(folder)
    found: list[Ours] = []
    entries = [] if place is None else sorted(place.iterdir(), key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".json"):
            found += _of_file(entry)
    return found


def longest(found: Iterable[Ours]) -> Ours | None:
    """The one of most epochs, then closest to its recipe, then of most seeds, then the latest.

    Never that of best accuracy.
    """

    def rank(ours: Ours) -> tuple[int, int, int, str]:
        return ours.epochs, -ours.num_changed, ours.accuracy.num, ours.date

    return max(found, key=rank, default=None)


def _shipped() -> Traversable | None:
    """Within the wheel, or, in a checkout, beside ``src``."""
    inside = files("crsam") / "results"
    beside = Path(crsam.__file__).parents[2] / "results"
    return inside if inside.is_dir() else beside if beside.is_dir() else None


def _of_file(entry: Traversable) -> Iterator[Ours]:
    try:
        content = json.loads(entry.read_text())
    except ValueError as error:
        raise UserError(f"{entry} is not JSON: {error}") from error
    runs = content.get("runs") if isinstance(content, dict) else None
    if not (isinstance(runs, list) and isinstance(content.get("recipe"), dict)):
        return  # a benchmark of something else
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run in runs:
        if run.get("stage", "final") == "final" and run.get("test_accuracy") is not None:
            recipe = {**flat(content["recipe"]), **run.get("changes", {})}
            recipe.setdefault("method", run.get("method"))
            if "method" in run:  # a comparison has one recipe for all, and a method a run
                recipe["method"] = run["method"]
            setup = _setup(recipe)
            if setup is not None:
                name = run.get("contestant", run.get("method"))
                epochs, decay = recipe["train.epochs"], recipe.get("optimizer.weight_decay", 0.0)
                rho = recipe.get(f"methods.{setup.method}.rho")
                num_changed = sum(key.startswith("methods.") for key in run.get("changes", {}))
                key = setup, name, epochs, decay, rho, num_changed
                groups.setdefault(key, []).append(run)
    for (setup, name, epochs, decay, rho, num_changed), same in groups.items():
        hardware = same[0].get("hardware") or content.get("hardware", "")
        accuracy = spread([run["test_accuracy"] for run in same])
        date = max(run.get("date") or content.get("date") or "" for run in same)
        figures = _figures(same)
        where = hardware, entry.name, decay, date
        yield Ours(setup, name, epochs, accuracy, figures, *where, rho, num_changed)


def _setup(recipe: Mapping[str, Any]) -> Setup | None:
    """None: a recipe that no table of the paper could have, such as one with wrong labels."""
    options = {k for k in recipe if k.startswith("model.")} - {"model.name", "model.stem"}
    if options or recipe.get("data.label_noise") or recipe.get("data.validation"):
        return None
    data = recipe["data.name"]
    if data == "folder":
        data = PurePosixPath(recipe["data.root"]).name
    if recipe.get("data.test_share"):  # of the training images, so not what others are judged on
        data = f"{data}, held out"
    base = recipe["method"] in ("base", recipe["optimizer.name"])
    method = "base" if base else recipe["method"]
    return Setup(data, recipe["model.name"], recipe["augment.name"], method)


def _figures(runs: list[dict[str, Any]]) -> dict[str, Spread]:
    suffix = ", test"
    names = [n for n in runs[0].get("measures", {}) if n.endswith(suffix)]
    return {
        name.removesuffix(suffix): spread([run.get("measures", {}).get(name) for run in runs])
        for name in names
    }
