"""Runs on sets of other images, in their published layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from crsam.errors import UserError
from crsam.lab.data.decoder import View
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.robustness.judged import Judged, accuracies, judge
from crsam.lab.experiment.robustness.section import (
    ALEXNET,
    FILE,
    Section,
    read_sections,
    reference_run,
    section_of,
)
from crsam.lab.robustness.layouts import Cell, Files, files_by_class, find_arrays, find_corrupted
from crsam.lab.robustness.reading import Labelled, of_arrays, of_files
from crsam.lab.robustness.score import Corrupted
from crsam.lab.robustness.settings import is_whole
from crsam.lab.train.distributed import World
from crsam.progress import bar

NUM_IMAGENET = 1000


@dataclass(frozen=True)
class Asked:
    """Which sets, and what their errors are compared with."""

    imagenet_c: Path | None = None
    imagenet_r: Path | None = None
    cifar_c: Path | None = None
    relative_to: Path | None = None
    """A run that was evaluated before; None: AlexNet, where that makes sense."""

    def __bool__(self) -> bool:
        return any((self.imagenet_c, self.imagenet_r, self.cifar_c))


def evaluate_robustness(
    folders: Sequence[str | Path],
    asked: Asked,
    world: World | None = None,
    root: str | None = None,
) -> list[dict[str, Section]]:
    """Accuracies of runs on sets of other images; also written to ``robustness.json`` of each.

    Args:
        folders: Of runs; several must have the same classes and the same size of images.
        asked: Which sets.
        world: The processes that take part.
        root: Where the runs' own data is, for those that do not remember their classes.

    Returns:
        For each run the sets that were asked for, by name: ``"imagenet_c"`` and so on.

    Raises:
        UserError: If a set is not there, or does not fit the runs.
    """
    world = world or World()
    judged = judge(folders, world, root)
    found: dict[str, list[Section]] = {}
    if asked.imagenet_c is not None:
        found["imagenet_c"] = on_corrupted(judged, asked.imagenet_c, asked.relative_to)
    if asked.cifar_c is not None:
        found["cifar_c"] = on_arrays(judged, asked.cifar_c, asked.relative_to)
    if asked.imagenet_r is not None:
        found["imagenet_r"] = on_renditions(judged, asked.imagenet_r)
    by_run = [{name: sections[i] for name, sections in found.items()} for i in range(len(folders))]
    for folder, run, sections in zip(judged.folders, judged.runs, by_run):
        if world.is_main:
            about = {**environment(world.device), "step": run.step}
            earlier = read_sections(folder)
            mine = {name: {**section, **about} for name, section in sections.items()}
            RunFolder(folder).write_json(FILE, {**earlier, **mine})
    world.wait()
    return by_run


def on_corrupted(judged: Judged, root: Path, relative_to: Path | None = None) -> list[Section]:
    """A set in the layout of ImageNet-C, whose images are scaled to the runs' size, not cut again.

    But a copy of whole photographs, as `crsam corrupt` makes it, is framed as the runs' own test
    images are.
    """
    side, there = _side(judged), find_corrupted(root)
    view = View(side, side, middle=judged.middle if is_whole(root) else None)
    number = _matched({name for files in there.cells.values() for name in files}, judged, root)

    cells = {cell: _labelled(files, number) for cell, files in there.cells.items()}
    for (corruption, severity), (paths, _) in cells.items():
        if not paths:
            raise UserError(
                f"{root}: {corruption}/{severity} has no image of the run's classes, though others "
                "have"
            )
    is_imagenet = len(number) == len(judged.classes) == NUM_IMAGENET
    about = {
        "root": str(root),
        "num_images": len(next(iter(cells.values()))[0]),
        "num_classes": len(number),
        "num_classes_of_run": len(judged.classes),
    }
    reference = ALEXNET if is_imagenet else None
    if relative_to is not None:
        reference = reference_run(relative_to, "imagenet_c", about)
    batches = of_files(cells, view, judged.share)
    scores = _scores(judged, list(cells), batches, len(cells) * there.num_images, "ImageNet-C")
    return [about | section_of(score, there.missing, reference) for score in scores]


def on_arrays(judged: Judged, root: Path, relative_to: Path | None = None) -> list[Section]:
    """A set in the layout of CIFAR-10-C."""
    there = find_arrays(root)
    sample = next(iter(there.cells.values()))
    shape, num_classes = (3, *sample.shape[1:3]), int(there.labels.max()) + 1
    if shape != judged.shape or num_classes != len(judged.classes):
        raise UserError(
            f"{root} has {num_classes} classes and images of {shape[1]}×{shape[2]}; the run has "
            f"{len(judged.classes)} and images of {'×'.join(map(str, judged.shape))}"
        )

    about = {"root": str(root), "num_images": len(there.labels), "num_classes": num_classes}
    reference = None if relative_to is None else reference_run(relative_to, "cifar_c", about)
    batches = of_arrays(there.cells, there.labels, judged.share)
    scores = _scores(
        judged, list(there.cells), batches, len(there.cells) * len(there.labels), "CIFAR-C"
    )
    return [about | section_of(score, there.missing, reference) for score in scores]


def on_renditions(judged: Judged, root: Path) -> list[Section]:
    """A set in the layout of ImageNet-R: a folder a class, of some of the runs' classes.

    Images are framed as the runs' own test images are. As its authors do, only the outputs of the
    classes that the set has take part: a model of 1000 classes chooses among the 200.
    """
    side, files = _side(judged), files_by_class(root)
    number = _matched(set(files), judged, root)
    paths, labels = _labelled(files, number)
    mask = torch.full((len(judged.classes),), float("-inf"), device=judged.world.device)
    mask[sorted(number.values())] = 0
    view = View(side, side, middle=judged.middle)
    batches = of_files({None: (paths, labels)}, view, judged.share)
    with bar("ImageNet-R", len(paths), shown=None if judged.world.is_main else False) as advance:
        right = accuracies(judged, [None], batches, advance, mask)[None]
    about = {
        "root": str(root),
        "num_images": len(paths),
        "num_classes": len(number),
        "num_classes_of_set": len(files),
        "num_classes_of_run": len(judged.classes),
    }
    return [about | {"accuracy": accuracy} for accuracy in right]


def _side(judged: Judged) -> int:
    channels, height, width = judged.shape
    if channels != 3 or height != width:
        shown = "×".join(map(str, judged.shape))
        raise UserError(f"folders hold photographs: the run's images must be 3×N×N, got {shown}")
    return height


def _matched(names: set[str], judged: Judged, root: Path) -> dict[str, int]:
    """The number of each class that the set and the runs have in common."""
    found = {name: i for i, name in enumerate(judged.classes) if name in names}
    if not found:
        raise UserError(
            f"{root} has none of the run's classes: it has {sorted(names)[0]!r} and the like, the "
            f"run {judged.classes[0]!r}"
        )
    return found


def _labelled(files: Files, number: dict[str, int]) -> tuple[list[str], list[int]]:
    pairs = [(path, number[name]) for name in files if name in number for path in files[name]]
    return [path for path, _ in pairs], [label for _, label in pairs]


def _scores(
    judged: Judged,
    cells: Sequence[Cell],
    batches: Iterator[tuple[Cell, Labelled]],
    num_images: int,
    label: str,
) -> list[Corrupted]:
    """Of each run."""
    with bar(label, num_images, shown=None if judged.world.is_main else False) as advance:
        found = accuracies(judged, cells, batches, advance)
    return [
        Corrupted({cell: right[i] for cell, right in found.items()})
        for i in range(len(judged.runs))
    ]
