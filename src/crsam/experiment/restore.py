"""The model of a run, as its checkpoint has it, with its data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from crsam.data.batches import Feed
from crsam.data.images import Held, Images
from crsam.errors import UserError
from crsam.experiment.build import build_model
from crsam.experiment.folder import RunFolder
from crsam.experiment.recipe import Recipe
from crsam.experiment.splits import Splits, build_data, input_dtype
from crsam.train import checkpoint
from crsam.train.distributed import World

Split = Literal["train", "validation", "test"]

DATA_FILE = "data.json"
"""What a run remembers of its images: enough to judge its model on others without them."""


@dataclass(frozen=True)
class Restored:
    """A trained model and what it was trained on."""

    recipe: Recipe
    splits: Splits
    model: nn.Module
    """The averaged one, where an average was kept."""
    step: int

    def images(self, split: Split) -> Images:
        """One of the splits.

        Raises:
            UserError: If the run held out no validation images.
        """
        images: Images | None = getattr(self.splits, split)
        if images is None:
            raise UserError("this run held out no validation images: data.validation is 0")
        return images


def restored(
    folder: str | Path, world: World, root: str | None = None, *, with_images: bool = True
) -> Restored:
    """The model of a run's checkpoint.

    Args:
        folder: Of the run.
        world: Where to put it.
        root: Where the data is, if not where the recipe says.
        with_images: Whether its splits are needed. If not they are empty, unless the run is of
            before runs remembered their data: then they are read nonetheless.

    Raises:
        UserError: If there is no run, no checkpoint, or one of another model.
    """
    place = RunFolder(folder)
    recipe = place.recipe()
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=root))
    if not place.checkpoint_file.exists():
        raise UserError(f"{place.path} has no checkpoint yet: train first")
    state = checkpoint.load(place.checkpoint_file, world.device)
    known = None if with_images else remembered(place, recipe, world.device)
    splits = known or build_data(recipe, world.device)
    model = build_model(recipe, splits, world.device, begins=False)
    try:
        training = state["training"]
        weights = training["model"]
        if training["average"] is not None:
            inside = "module."
            average = training["average"].items()
            weights = {k.removeprefix(inside): v for k, v in average if k.startswith(inside)}
        model.load_state_dict(weights)
        return Restored(recipe, splits, model, training["step"])
    except (KeyError, TypeError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{place.checkpoint_file} is of another model: {first}") from error


def described(splits: Splits) -> dict[str, Any]:
    """What a run writes to ``data.json``."""
    return {
        "classes": splits.classes,
        "shape": splits.train.shape,
        "mean": splits.feed.mean,
        "std": splits.feed.std,
    }


def remembered(place: RunFolder, recipe: Recipe, device: torch.device) -> Splits | None:
    """The data of a run without its images; None if its folder does not say."""
    file = place.path / DATA_FILE
    if not file.is_file():
        return None
    try:
        said = json.loads(file.read_text())
        classes, shape = tuple(said["classes"]), tuple(said["shape"])
        nothing = Held(
            torch.empty(0, *shape, dtype=torch.uint8, device=device),
            torch.empty(0, dtype=torch.int64, device=device),
        )
        feed = Feed(
            tuple(said["mean"]), tuple(said["std"]), len(classes), dtype=input_dtype(recipe)
        )
        return Splits(train=nothing, validation=None, test=nothing, feed=feed, classes=classes)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} is not what a run writes: {error!r}") from error
