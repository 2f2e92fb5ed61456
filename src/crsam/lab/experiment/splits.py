"""The images of a run: which there are, which are trained on, what is done to them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from crsam.errors import UserError
from crsam.lab import data
from crsam.lab.data.augment import Augmentation, Flip, Inception, make_augment
from crsam.lab.data.augment import options as augment_options
from crsam.lab.data.batches import Feed, derive
from crsam.lab.data.broken import Broken
from crsam.lab.data.images import Images
from crsam.lab.experiment.options import naming
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.sections import Data


@dataclass(frozen=True)
class Splits:
    """The data of a run."""

    train: Images
    validation: Images | None
    """Held out of the training set, to choose by; its labels are as wrong as those."""
    test: Images
    """To be looked at once, at the end."""
    feed: Feed
    classes: tuple[str, ...]
    """The name of each label."""
    broken: tuple[Broken, ...] = ()
    """Images that could not be read, as they are found."""
    fingerprint: str | None = None
    """See `Dataset`."""


def dataset_of(recipe: Recipe) -> data.Dataset:
    """The set of a recipe, before any of it is held out. It is kept for the next recipe."""
    root = str(Path(recipe.data.root).expanduser().absolute())
    # What is loaded does not depend on the rest, and is kept for runs that differ in it.
    as_it_is = replace(recipe.data, root=root, validation=0.0, test_share=0.0, label_noise=0.0)
    return loaded(as_it_is, windows_of(recipe))


def build_data(recipe: Recipe, device: torch.device) -> Splits:
    """The splits, held on the device where they fit."""
    chosen = recipe.data
    windows = windows_of(recipe)
    everything = dataset_of(recipe)
    train, validation, test = everything.train, None, everything.test
    if chosen.test_share:  # drawn apart from what a run without it holds out to choose by
        train, test = data.split(train, chosen.test_share, derive(0, "test images"))
        _check_split("test_share", chosen.test_share, train, test, "test on")
    if chosen.validation:
        train, validation = data.split(train, chosen.validation)
        _check_split("validation", chosen.validation, train, validation, "choose by")

    def noisy(images: Images, purpose: str) -> Images:
        if chosen.label_noise:
            seed, num = derive(recipe.seed, purpose), len(everything.classes)
            images = data.with_wrong_labels(images, chosen.label_noise, num, seed)
        return images.to(device)

    feed = Feed(
        everything.mean,
        everything.std,
        len(everything.classes),
        # Windows are cut out of the photographs: what is left to do is to flip.
        Flip(windows.flip_share) if windows else build_augment(recipe, everything),
        recipe.loss.mixup,
        recipe.loss.label_smoothing,
        input_dtype(recipe),
    )
    return Splits(
        noisy(train, "labels"),
        None if validation is None else noisy(validation, "labels of validation"),
        test.to(device),
        feed,
        classes=everything.classes,
        broken=everything.broken,
        fingerprint=everything.fingerprint,
    )


def _check_split(key: str, share: float, train: Images, held_out: Images, purpose: str) -> None:
    if not (len(train) and len(held_out)):
        raise UserError(
            f"data.{key} = {share} leaves {len(train)} images to train on and {len(held_out)} to "
            f"{purpose}"
        )


def windows_of(recipe: Recipe) -> Inception | None:
    """The random windows of photographs to train on; None: images are augmented on the device."""
    if recipe.data.name != "folder" or recipe.data.hold or recipe.augment.name != "inception":
        return None
    if recipe.data.image_size is None:
        raise UserError("data.image_size must be given: the side that photographs are scaled to")
    with naming("augment"):
        return Inception(**recipe.augment.options)


def build_augment(recipe: Recipe, dataset: data.Dataset) -> Augmentation:
    """What is done to images on the device."""
    given = dict(recipe.augment.options)
    if "fill" in augment_options(recipe.augment.name):  # what is cut out gets the mean colour
        given.setdefault("fill", tuple(round(255 * mean) for mean in dataset.mean))
    with naming("augment"):
        augment = make_augment(recipe.augment.name, **given)
        augment.check_size(*dataset.train.shape[1:])
    return augment


_KNOWN = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}
"""Training images of sets that take time to read."""


def num_train(recipe: Recipe) -> int | None:
    """Number of images that a run trains on; None if the set cannot be found.

    No image of a folder is decoded, and nothing is downloaded.
    """
    chosen = recipe.data
    num = _KNOWN.get(chosen.name)
    if num is None:
        listed = replace(chosen, root=str(Path(chosen.root).expanduser().absolute()))
        if chosen.name == "folder":
            listed = replace(listed, hold=False, image_size=chosen.image_size or 1)
        try:
            num = len(loaded(listed, None).train)
        except UserError:
            return None
    for share in (chosen.test_share, chosen.validation):
        num -= round(share * num)
    return num


@functools.lru_cache(maxsize=1)
def loaded(chosen: Data, windows: Inception | None) -> data.Dataset:
    """The set; kept for the next run of this process, of which a study has many."""
    return data.load(
        chosen.name,
        chosen.root,
        image_size=chosen.image_size,
        download=chosen.download,
        hold=chosen.hold,
        windows=windows,
        middle=chosen.middle,
        draft=chosen.draft,
        workers=chosen.workers,
    )


def input_dtype(recipe: Recipe) -> torch.dtype:
    return torch.float64 if recipe.train.precision == "float64" else torch.float32
