"""The paper's tables, and what our own results have to set beside them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

import crsam
from crsam.errors import UserError
from crsam.lab._tables import flat
from crsam.lab.data.augment import make_augment
from crsam.lab.experiment.comparison import Spread, spread
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.recipe import as_tables
from crsam.lab.experiment.robustness.section import FILE, read_sections

TABLES = ("cifar", "imagenet", "geometry")
AUGMENTS: dict[str, dict[str, Any]] = {"cutout": {"cut_share": 0.5}, "autoaugment": {"side": 0}}
"""The options of the augmentations of Table 1, where they are not our defaults."""
ROBUSTNESS = {"imagenet_c": "mean_accuracy", "imagenet_r": "accuracy"}
"""For each other set of images in Table 2, the key of its figure in ``robustness.json``."""


def printed(table: str) -> dict[str, Any]:
    """The figures of one of the paper's tables, by model or method.

    Example:
        >>> printed("cifar")["resnet18"]["cifar10"]["basic"]["crsam"]
        [96.95, 0.13]
    """
    content = (files("crsam.lab.experiment") / "paper.toml").read_text()
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
    """All of our own figures in a folder.

    Args:
        folder: A folder with summaries of ``crsam study``, or with the ``comparison.json`` of
            ``crsam compare``, under any name. The ``robustness.json`` of the run folders in it are
            read too. Defaults to the results that come with the package.

    Raises:
        UserError: If there is no such folder, or a file of it is not JSON.
    """
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"there is no folder {str(folder)!r} of results")
    place = _shipped() if folder is None else Path(folder)
    found: list[Ours] = []
    entries = [] if place is None else sorted(place.iterdir(), key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".json") and entry.name != FILE:
            found += _of_file(entry)
    return found + list(_of_run_folders(place)) if isinstance(place, Path) else found


def longest(found: Iterable[Ours]) -> Ours | None:
    """The one of most epochs, then closest to its recipe, then of most seeds, then the latest.

    Never that of best accuracy.
    """

    def rank(ours: Ours) -> tuple[int, int, int, str]:
        return ours.epochs, -ours.num_changed, ours.accuracy.num, ours.date

    return max(found, key=rank, default=None)


def _shipped() -> Traversable | None:
    """Within the wheel, or, in a checkout, beside ``src``."""
    inside = files("crsam.lab") / "results"
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
    pairs = []
    for run in runs:
        if run.get("stage", "final") == "final" and run.get("test_accuracy") is not None:
            recipe = {**flat(content["recipe"]), **run.get("changes", {})}
            recipe.setdefault("method", run.get("method"))
            if "method" in run:  # a comparison has one recipe for all, and a method a run
                recipe["method"] = run["method"]
            about = {key: run.get(key) or content.get(key) for key in ("hardware", "date")}
            pairs.append((recipe, {**run, **about}))
    for group in _grouped(pairs, entry.name):
        yield group.of(["test_accuracy"])
        yield from group.of_other_images()


def _of_run_folders(place: Path) -> Iterator[Ours]:
    """Figures on other images, of runs that were evaluated on them."""
    pairs, depths = [], ("", "*/", "*/*/", "*/*/*/")
    for file in sorted(file for depth in depths for file in place.glob(depth + FILE)):
        folder = RunFolder(file.parent)
        if not folder.recipe_file.is_file():
            continue  # not of a run
        recipe, about = folder.recipe(), folder.environment()
        run = {key: about.get(key) for key in ("hardware", "date")}
        pairs.append((flat(as_tables(recipe)), {
            **run, "method": recipe.method, "robustness": read_sections(file.parent)
        }))  # fmt: skip
    for group in _grouped(pairs, FILE):
        yield from group.of_other_images()


@dataclass(frozen=True)
class _Group:
    """Runs that differ in their seed alone."""

    setup: Setup
    contestant: str
    epochs: int
    weight_decay: float
    rho: float | None
    num_changed: int
    source: str
    runs: list[dict[str, Any]]

    def of(self, path: list[str], data: str | None = None) -> Ours:
        """The figure that stands at this path of each run.

        Args:
            path: Keys, each within the last.
            data: The images that it is of. Defaults to the run's own.
        """
        of_own = data is None
        return Ours(
            self.setup if data is None else replace(self.setup, data=data),
            self.contestant,
            self.epochs,
            spread([_at(run, path) for run in self.runs]),
            _figures(self.runs) if of_own else {},
            self.runs[0].get("hardware") or "",
            self.source,
            self.weight_decay,
            max(run.get("date") or "" for run in self.runs),
            self.rho,
            self.num_changed,
        )

    def of_other_images(self) -> Iterator[Ours]:
        """Those of ImageNet-C and -R; a mean that lacks some corruption is none."""
        for name, key in ROBUSTNESS.items():
            path = ["robustness", name, key]
            seen = [run for run in self.runs if _at(run, path) is not None]
            if seen and self.setup.data == "imagenet":
                yield replace(self, runs=seen).of(path, name)


def _at(run: Mapping[str, Any], path: list[str]) -> float | None:
    value: Any = run
    for key in path:
        value = (value or {}).get(key)
    return None if value is None else float(value)


def _grouped(
    pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]], source: str
) -> Iterator[_Group]:
    groups: dict[tuple[Setup, str, int, float, float | None, int], list[dict[str, Any]]] = {}
    for recipe, run in pairs:
        setup = _setup(recipe)
        if setup is not None:
            name = run.get("contestant") or recipe["method"]
            epochs, decay = recipe["train.epochs"], recipe.get("optimizer.weight_decay", 0.0)
            rho = recipe.get(f"methods.{setup.method}.rho")
            num_changed = sum(key.startswith("methods.") for key in run.get("changes", {}))
            key = setup, name, epochs, decay, rho, num_changed
            groups.setdefault(key, []).append(run)
    for key, same in groups.items():
        yield _Group(*key, source, same)


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
    return Setup(data, recipe["model.name"], _augment(recipe), method)


def _augment(recipe: Mapping[str, Any]) -> str:
    """Its name; with other options than the paper's, the name says so."""
    name, start = recipe["augment.name"], "augment."
    given = {k.removeprefix(start): v for k, v in recipe.items() if k.startswith(start)}
    options = {k: v for k, v in given.items() if k != "name"}
    theirs = make_augment(name, **AUGMENTS.get(name, {}))
    return name if make_augment(name, **options) == theirs else f"{name}, other options"


def _figures(runs: list[dict[str, Any]]) -> dict[str, Spread]:
    suffix = ", test"
    names = [n for n in runs[0].get("measures", {}) if n.endswith(suffix)]
    return {
        name.removesuffix(suffix): spread([run.get("measures", {}).get(name) for run in runs])
        for name in names
    }
