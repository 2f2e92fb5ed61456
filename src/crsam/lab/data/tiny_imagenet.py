"""Tiny ImageNet: 200 classes of ImageNet, 100,000 small images to learn from, 10,000 to judge by.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", 2015. At 32 × 32 pixels it is as large as
two CIFAR-100s, with twice the classes.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

from crsam.errors import UserError
from crsam.lab.data.decoded import Decoded, hold
from crsam.lab.data.decoder import View
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Dataset
from crsam.lab.data.listing import Listing, Names, is_image
from crsam.lab.data.shards import Member, members

SIDE = 32
# Of all training pixels at 32 × 32, between 0 and 1; measured.
MEAN = (0.4806, 0.4486, 0.3983)
STD = (0.2521, 0.2448, 0.2590)
LARGEST_NOTES = 64 << 20
"""Bytes of the file of labels, unpacked. The official one has less than 1 MiB."""


class Found(NamedTuple):
    """An image: a file of its own, or a member of an archive."""

    holder: str
    name: str
    member: Member | None = None

    def __str__(self) -> str:
        return f"{self.holder}{'/' if self.member is None else ':'}{self.name}"


def read_tiny_imagenet(root: Path, *, image_size: int | None = None) -> Dataset:
    """The images of ``root``, all held, brought to 32 × 32 pixels unless told otherwise.

    Three layouts are known: ``train/CLASS/*`` and ``val/CLASS/*``; the official one, with
    ``train/CLASS/images/*``, ``val/images/*`` and ``val/val_annotations.txt``; and zip files of
    either, which need not be unpacked.

    Args:
        root: Holds the folders or the zip files.
        image_size: Side of the images.

    Raises:
        UserError: If there are no such files, or an image cannot be read.
    """
    side = SIDE if image_size is None else image_size
    archives = sorted(root.glob("*.zip"))
    if (root / "train").is_dir() and not (root / "val" / "val_annotations.txt").is_file():
        found = read_folder(root, image_size=side, hold=True)
        return replace(found, mean=MEAN, std=STD, fingerprint=None)
    if (root / "train").is_dir():
        names = [path.relative_to(root).as_posix() for path in root.rglob("*.JPEG")]
        notes = (root / "val" / "val_annotations.txt").read_text()
        return _dataset(root, {name: Found(str(root), name) for name in names}, notes, side)
    if archives:
        return _dataset(root, *_packed(archives), side)
    raise UserError(
        f"there is no Tiny ImageNet in {root}: it must hold train/ and val/, or zip files of them"
    )


def _packed(archives: Iterable[Path]) -> tuple[dict[str, Found], str]:
    """The images by their path within the set, and the labels of the official validation set."""
    found: dict[str, Found] = {}
    notes = ""
    for archive in archives:
        for member in members(archive):
            name = member.name
            if name.endswith("val_annotations.txt"):
                notes = _notes(archive, name)
            elif member.size >= 0 and is_image(name):
                found[name] = Found(str(archive), name, member)
    return found, notes


def _notes(archive: Path, name: str) -> str:
    """The labels of the official validation set."""
    try:
        with zipfile.ZipFile(archive) as file, file.open(name) as member:
            notes = member.read(LARGEST_NOTES + 1)
            if len(notes) > LARGEST_NOTES:
                raise UserError(f"{archive}: {name} has more than {LARGEST_NOTES >> 20} MiB")
            return notes.decode()
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{archive}: {name} cannot be read: {error}") from error


def _dataset(root: Path, found: Mapping[str, Found], notes: str, side: int) -> Dataset:
    classes_of_val = dict(line.split("\t")[:2] for line in notes.splitlines() if line.strip())
    splits: dict[str, list[tuple[str, Found]]] = {"train": [], "val": []}
    for name, image in sorted(found.items()):
        parts = PurePosixPath(name).parts
        split = next((part for part in parts if part in splits), None)
        if split is None:  # the official set has images without labels, in test/
            continue
        after = parts[parts.index(split) + 1 :]
        label = classes_of_val.get(after[-1]) if after[0] == "images" else after[0]
        if label is None:
            raise UserError(f"{image} has no line in val_annotations.txt of {root}")
        splits[split].append((label, image))
    for split, images in splits.items():
        if not images:
            raise UserError(f"there are no images of {split}/ in {root}")
    classes = tuple(sorted({label for label, _ in splits["train"]}))
    if extra := sorted({label for label, _ in splits["val"]} - set(classes)):
        raise UserError(f"{root}: val/ has the class {extra[0]!r}, which train/ has not")
    train, test = (_decoded(images, classes, side) for images in splits.values())
    return Dataset(
        hold(train, "training images"),
        hold(test, "test images"),
        classes,
        MEAN,
        STD,
        (train.listing.broken, test.listing.broken),
    )


def _decoded(images: list[tuple[str, Found]], classes: tuple[str, ...], side: int) -> Decoded:
    holders = {image.holder: 0 for _, image in images}
    numbers = {holder: i for i, holder in enumerate(holders)}
    places = [
        (numbers[image.holder], image.member.offset, image.member.size)
        if image.member
        else (numbers[image.holder], -1, 0)
        for _, image in images
    ]
    labels = torch.tensor([classes.index(name) for name, _ in images])
    counts = dict(zip(classes, labels.bincount(minlength=len(classes)).tolist()))
    names = Names([image.name for _, image in images])
    listing = Listing(tuple(holders), names, torch.tensor(places), counts)
    return Decoded(listing, labels, View(side, side))
