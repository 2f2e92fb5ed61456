"""The model of a run, as its checkpoint has it, with its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import nn

from crsam.data.images import Images
from crsam.errors import UserError
from crsam.experiment.build import Splits, build_data, build_model
from crsam.experiment.folder import RunFolder
from crsam.experiment.recipe import Recipe
from crsam.train import checkpoint
from crsam.train.distributed import World

Split = Literal["train", "validation", "test"]


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


def restored(folder: str | Path, world: World, root: str | None = None) -> Restored:
    """The model of a run's checkpoint.

    Args:
        folder: Of the run.
        world: Where to put it.
        root: Where the data is, if not where the recipe says.

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
    splits = build_data(recipe, world.device)
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
