"""Models of runs, shown images that are none of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.folder import MIDDLE
from crsam.lab.experiment.build import autocast_of
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.restore import Restored, restored
from crsam.lab.experiment.splits import windows_of
from crsam.lab.robustness.reading import Labelled, Share
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import evaluating
from crsam.progress import Advance

K = TypeVar("K", bound="tuple[object, ...] | None")
BATCH_SIZE = 256


@dataclass(frozen=True)
class Judged:
    """Runs that are looked at together: each batch is read once and shown to all of them."""

    folders: Sequence[Path]
    runs: Sequence[Restored]
    world: World = field(default_factory=World)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.runs[0].splits.classes

    @property
    def middle(self) -> float | None:
        """Which share of an image's shorter side the runs' own test images show; None: all."""
        return middle_of_run(self.runs[0].recipe)

    @property
    def share(self) -> Share:
        """This process's batches."""
        return Share(BATCH_SIZE, self.world.rank, self.world.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.runs[0].splits.train.shape


def middle_of_run(recipe: Recipe) -> float | None:
    share = recipe.data.middle
    return MIDDLE if share is None and windows_of(recipe) is not None else share


def judge(folders: Sequence[str | Path], world: World, root: str | None = None) -> Judged:
    """The models of runs, without the runs' own images.

    Args:
        folders: Of the runs.
        world: The processes that take part.
        root: Where the runs' images are, for runs that do not remember their classes.

    Raises:
        UserError: If they differ in classes or in the size of their images.
    """
    runs = [restored(folder, world, root, with_images=False) for folder in folders]
    judged = Judged([Path(folder) for folder in folders], runs, world)
    for folder, run in zip(judged.folders, runs):
        mine = (run.splits.classes, run.splits.train.shape, middle_of_run(run.recipe))
        if mine != (judged.classes, judged.shape, judged.middle):
            raise UserError(
                f"{folder} and {judged.folders[0]} differ in their classes, or in the size or the "
                "framing of their images: evaluate them one at a time"
            )
    return judged


@torch.no_grad()
def accuracies(
    judged: Judged,
    keys: Sequence[K],
    batches: Iterator[tuple[K, Labelled]],
    advance: Advance,
    mask: Tensor | None = None,
) -> dict[K, list[float]]:
    """Of each run in per cent, for each of the sets that batches are of.

    Args:
        judged: The runs.
        keys: Of the sets.
        batches: This process's share of them, each with the key of its set.
        advance: Is told how far it has come.
        mask: Is added to the outputs.
    """
    world, runs = judged.world, judged.runs
    place = {key: i for i, key in enumerate(keys)}
    sums = torch.zeros(len(keys), len(runs) + 1, dtype=torch.float64, device=world.device)
    with ExitStack() as modes:
        for run in runs:
            modes.enter_context(evaluating(run.model))
        for key, (pixels, labels) in batches:
            mine = sums[place[key]]
            pixels, labels = pixels.to(world.device).contiguous(), labels.to(world.device)
            for i, run in enumerate(runs):
                autocast = autocast_of(run.recipe)
                inputs = run.splits.feed.plain(pixels, labels).inputs
                with torch.autocast(world.device.type, autocast, enabled=autocast is not None):
                    logits = run.model(inputs)
                chosen = (logits if mask is None else logits + mask).argmax(1)
                mine[i] += (chosen == labels).sum()
            mine[-1] += len(labels)
            advance(len(labels) * world.size, None if key is None else " ".join(map(str, key)))
    found: dict[K, list[float]] = {}
    for key, (*right, total) in zip(keys, world.total(sums).tolist()):
        found[key] = [100 * count / total for count in right]
    return found
