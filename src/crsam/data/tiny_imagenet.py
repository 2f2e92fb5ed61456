"""Tiny ImageNet: 200 classes of ImageNet, 100,000 small images to learn from, 10,000 to judge by.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", 2015. At 32 × 32 pixels it is as large as
two CIFAR-100s, with twice the classes, and stands in for it where that is not to be had.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import torch

from crsam.data.folder import Packed, decode, read_folder
from crsam.data.images import Dataset, Held
from crsam.errors import UserError
from crsam.progress import bar

SIDE = 32
# Of all training pixels at 32 × 32, between 0 and 1; measured.
MEAN = (0.4806, 0.4486, 0.3983)
STD = (0.2521, 0.2448, 0.2590)

Source = str | Packed


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
        return Dataset(found.train, found.test, found.classes, MEAN, STD)
    if (root / "train").is_dir():
        sources = {
            path.relative_to(root).as_posix(): str(path) for path in sorted(root.rglob("*.JPEG"))
        }
        notes = (root / "val" / "val_annotations.txt").read_text()
        return _dataset(root, sources, notes, side)
    if archives:
        return _dataset(root, *_unpacked(archives), side)
    raise UserError(
        f"there is no Tiny ImageNet in {root}: it must hold train/ and val/, or zip files of them"
    )


def _unpacked(archives: Iterable[Path]) -> tuple[dict[str, Packed], str]:
    """The images by their path within the set, and the labels of the official validation set."""
    found: dict[str, Packed] = {}
    notes = ""
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as file:
                for name in file.namelist():
                    if name.endswith("val_annotations.txt"):
                        notes = file.read(name).decode()
                    elif name.lower().endswith((".jpeg", ".jpg", ".png")):
                        found[name] = Packed(f"{archive}:{name}", file.read(name))
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{archive} cannot be read: {error}") from error
    return found, notes


def _dataset(root: Path, sources: Mapping[str, Source], notes: str, side: int) -> Dataset:
    classes_of_val = dict(line.split("\t")[:2] for line in notes.splitlines() if line.strip())
    splits: dict[str, list[tuple[str, Source]]] = {"train": [], "val": []}
    for name, source in sorted(sources.items()):
        parts = PurePosixPath(name).parts
        split = next((part for part in parts if part in splits), None)
        if split is None:  # the official set has images without labels, in test/
            continue
        after = parts[parts.index(split) + 1 :]
        label = classes_of_val.get(after[-1]) if after[0] == "images" else after[0]
        if label is None:
            raise UserError(f"{source} has no line in val_annotations.txt of {root}")
        splits[split].append((label, source))
    for split, images in splits.items():
        if not images:
            raise UserError(f"there are no images of {split}/ in {root}")
    classes = tuple(sorted({label for label, _ in splits["train"]}))
    if extra := sorted({label for label, _ in splits["val"]} - set(classes)):
        raise UserError(f"{root}: val/ has the class {extra[0]!r}, which train/ has not")
    return Dataset(
        _held("training images", splits["train"], classes, side),
        _held("test images", splits["val"], classes, side),
        classes,
        MEAN,
        STD,
    )


def _held(
    label: str, images: list[tuple[str, Source]], classes: tuple[str, ...], side: int
) -> Held:
    number = {name: i for i, name in enumerate(classes)}
    with bar(f"decoding {label}", len(images)) as advance:
        pixels = decode([source for _, source in images], (side, side), side, advance)
    return Held(pixels, torch.tensor([number[name] for name, _ in images]))
