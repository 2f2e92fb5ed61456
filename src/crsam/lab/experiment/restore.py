"""The model of a run, as its checkpoint has it, with its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from crsam import _files
from crsam.errors import UserError
from crsam.lab._torch_files import Damaged
from crsam.lab.data.batches import Feed
from crsam.lab.data.images import Held, Images
from crsam.lab.experiment.build import build_model
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.splits import Splits, build_data, dataset_of, input_dtype
from crsam.lab.train import checkpoint
from crsam.lab.train.distributed import World
from crsam.progress import say

Split = Literal["train", "validation", "test"]

DATA_FILE = "data.json"
"""What a run remembers of its images: enough to judge its model on others without them."""
OTHERS = "files of other names or contents"


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
        UserError: If there is no run, no checkpoint, a damaged one, or one of another model.
    """
    place = RunFolder(folder)
    recipe = place.recipe()
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=root))
    if not place.checkpoint_file.exists():
        raise UserError(f"{place.path} has no checkpoint yet: train first")
    try:
        state = checkpoint.load(place.checkpoint_file, world.device)
    except Damaged as error:
        raise UserError(f"{error}. {_repair(place)}") from error
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
        reason = first_lines(error)
        raise UserError(f"{place.checkpoint_file} is of another model: {reason}") from error


def last_whole(place: RunFolder, world: World) -> tuple[Path, dict[str, Any]]:
    """Reads the checkpoint that a run goes on from: the newest, or the one before if it is damaged.

    All processes read the same one.

    Returns:
        Its file and its content.

    Raises:
        UserError: If there is no whole one.
    """
    damage: list[str] = []
    for file in (place.checkpoint_file, place.previous_file):
        if not file.exists():
            continue
        state = None
        try:
            state = checkpoint.load(file, world.device)
        except Damaged as error:
            damage.append(str(error))
        except UserError as error:
            raise UserError(f"{error}; --fresh starts the run over") from error
        if world.any(state is None):
            damage += [f"{file} is damaged: another process cannot read it"] * (state is not None)
            continue
        assert state is not None
        if file == place.previous_file and world.is_main:
            why = damage[0] if damage else f"{place.checkpoint_file} is missing"
            say(f"{why}. The run goes on from the checkpoint before it, {file}")
        return file, state
    raise UserError(f"{'; '.join(damage)}; --fresh starts the run over")


def _repair(place: RunFolder) -> str:
    """What to do about a damaged checkpoint of a run."""
    if not place.previous_file.exists():
        return "Copy the file again from where it is whole, or train the run again with --fresh"
    delete = f"delete {place.result_file} and " if place.result_file.exists() else ""
    return (
        f"Copy the file again from where it is whole, or {delete}give its train command again: "
        f"the run then goes on from the checkpoint before it, {place.previous_file}"
    )


def first_lines(error: Exception) -> str:
    """Of what torch says of a state that does not fit: what it is about, and the first misfit."""
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


def described(splits: Splits) -> dict[str, Any]:
    """What a run writes to ``data.json``."""
    images = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {
        "classes": list(splits.classes),
        "images": {name: 0 if split is None else len(split) for name, split in images.items()},
        "shape": list(splits.train.shape),
        "mean": splits.feed.mean,
        "std": splits.feed.std,
        **({} if splits.fingerprint is None else {"fingerprint": splits.fingerprint}),
    }


def check_data(place: RunFolder, splits: Splits) -> None:
    """Raises UserError if the run there was of other images, as far as it remembers them."""
    there = _files.read_json(place.path / DATA_FILE)
    what = None if there is None else _difference(there, described(splits))
    if what is not None:
        raise _on_others(place, what)


def check_moved(place: RunFolder, recipe: Recipe) -> None:
    """Raises UserError if the images were somewhere else for the run there, and were others.

    A run of an earlier version has not kept a fingerprint. It counts as one on the same images.
    """
    if not has_moved(place, recipe):
        return
    there = (_files.read_json(place.path / DATA_FILE) or {}).get("fingerprint")
    if there is not None and dataset_of(recipe).fingerprint != there:
        raise _on_others(place, OTHERS)


def _on_others(place: RunFolder, what: str) -> UserError:
    return UserError(
        f"{place.path} holds a run on other images ({what}): give another --out, or --fresh to "
        "start over"
    )


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str | None:
    old, new = there.get("classes", here["classes"]), here["classes"]
    only = [f"{name!r} only there" for name in old if name not in new]
    only += [f"{name!r} only here" for name in new if name not in old]
    if only:
        return ", ".join(only[:3]) + (f" and {len(only) - 3} more" if len(only) > 3 else "")
    for name, number in there.get("images", {}).items():
        if here["images"].get(name) != number:
            return f"{number} {name} images there, {here['images'].get(name)} here"
    if there.get("shape", here["shape"]) != here["shape"]:
        return f"of shape {there['shape']} there, {here['shape']} here"
    if old != new:
        return "the same classes in another order"
    known = there.get("fingerprint")
    return None if known in (None, here.get("fingerprint")) else OTHERS


def has_moved(place: RunFolder, recipe: Recipe) -> bool:
    """Whether a run is asked for whose images are elsewhere than they were, and may be others."""
    return recipe.data.name == "folder" and place.recipe().data.root != recipe.data.root


def remembered(place: RunFolder, recipe: Recipe, device: torch.device) -> Splits | None:
    """The data of a run without its images; None if its folder does not say."""
    file = place.path / DATA_FILE
    said = _files.read_json(file)
    if said is None:
        return None
    try:
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
