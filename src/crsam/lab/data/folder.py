"""Images in folders, ``train/CLASS/*`` and ``val/CLASS/*``, or in tar or zip files of these; or in
``CLASS/*`` alone."""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path

import torch

from crsam.errors import UserError
from crsam.lab.data.augment.inception import Inception
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.decoded import hold as held
from crsam.lab.data.decoder import View, in_colour, read
from crsam.lab.data.fingerprint import fingerprint
from crsam.lab.data.images import Dataset, Images
from crsam.lab.data.listing import Listing, find_split, holds_classes, list_folder
from crsam.progress import say

HOLD_LIMIT = 4 << 30
"""Bytes up to which images, of training and test together, are held decoded."""
HELD_OUT = 0.2
"""Of each class, what is held out as the test set where there is none."""
MIDDLE = 0.875
"""Of the scaled shorter side of a photograph, what a model is judged on: 224 of 256 pixels."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def read_folder(
    root: Path,
    *,
    image_size: int | None = None,
    hold: bool | None = None,
    windows: Inception | None = None,
    middle: float | None = None,
    draft: bool | None = None,
    workers: int | None = None,
) -> Dataset:
    """The images of ``root/train/CLASS`` and of ``root/val/CLASS``, or ``root/test/CLASS``.

    Each of the two may be one or several archives instead, ``root/train.tar`` or
    ``root/train-0001.zip`` and so on, or a folder of them, with members ``CLASS/NAME`` or
    ``ANY/CLASS/NAME``; they are read where they lie. Where there is nothing but ``root/CLASS``, a
    fifth of each class is the test set: which images depends on the names of all, so it is the same
    in every run as long as those are. Classes are numbered in the order of their names. Mean and
    standard deviation are ImageNet's usual ones.

    Args:
        root: Holds the folders or archives.
        image_size: Side of the square that the middle of each image is scaled to. None: as they
            are, and all must be of one size; no side would do for images of 32 pixels and for
            photographs alike.
        hold: Whether to decode all images now and hold them as bytes, rather than decode each
            whenever it is shown. None: if they are no more than `HOLD_LIMIT` bytes, and no random
            windows are asked for.
        windows: Which random windows of the whole photographs are shown in training, scaled to
            `image_size`; None: always the middle.
        middle: Share of the shorter side that is shown where nothing is random, after it has been
            scaled to `image_size` over that share. None: 0.875 with `windows`, else all of it.
        draft: Whether JPEGs may be decoded at a half, a quarter or an eighth of their size where
            that is no less than what is shown. None: for random windows, not for what is judged.
        workers: Processes that decode; 0: this one. None: as many as there are cores for it.

    Raises:
        UserError: If folders or archives are missing, damaged or do not fit together, or too many
            images cannot be read.
    """
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise UserError(f"image_size must be a whole number of at least 1, got {image_size!r}")
    if windows is not None and (image_size is None or hold):
        raise UserError("random windows need image_size, and photographs that are not held")
    if middle is not None and not 0 < middle <= 1:
        raise UserError(f"middle must be above 0 and at most 1, got {middle}")
    _check_pillow()
    listings = _listings(root)
    view = _view(listings[0], image_size, windows, middle, draft)
    found = [Decoded(each, each.labels, view, workers=workers) for each in listings]
    train, test = found if len(found) == 2 else _parted(found[0])
    # Photographs that windows are cut out of cannot be held; those to be judged on still can.
    to_hold = [train, test] if windows is None else [test]
    num_bytes = sum(map(len, to_hold)) * view.num_bytes
    holds = num_bytes <= HOLD_LIMIT if hold is None else hold
    if image_size is None and not holds:
        raise UserError(
            f"image_size must be given for {root}: its images take {num_bytes / 2**30:.1f} GiB "
            "and are not held, so nothing has made sure that they are of one size"
        )

    def images(label: str, some: Decoded) -> Images:
        return held(some, label) if holds and some in to_hold else some

    return Dataset(
        train=images("training images", train),
        test=images("test images", test),
        classes=tuple(listings[0].classes),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        broken=tuple(each.broken for each in listings),
        fingerprint=fingerprint(listings),
    )


def _view(
    listing: Listing,
    image_size: int | None,
    windows: Inception | None,
    middle: float | None,
    draft: bool | None,
) -> View:
    if image_size is None:
        return View(*_size_of_first(listing), scaled=False)
    if windows is None:
        return View(image_size, image_size, middle=middle, draft=draft)
    share = MIDDLE if middle is None else middle
    return View(
        image_size, image_size, True, share, least=windows.least, shape=windows.shape, draft=draft
    )


def _size_of_first(listing: Listing) -> tuple[int, int]:
    """Of the first image that can be read: all must have it."""
    from PIL import Image

    for i in range(len(listing)):
        (source,) = listing.sources(torch.tensor([i]))
        try:
            return in_colour(Image.open(io.BytesIO(read(source)))).size
        except Exception:  # it is named when it is its turn
            continue
    raise UserError(f"{listing.name(0)} cannot be read as an image, nor can any other")


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError(
            "images in folders are read with Pillow, which is not installed: pip install pillow"
        ) from None


def _listings(root: Path) -> list[Listing]:
    """The training and the test images, of the same classes; or all, to be parted."""
    if holds_classes(root):
        return [list_folder(root)]
    train, test = find_split(root, "train"), find_split(root, "val", "test")
    for have, files, lack, others in (
        (train.holders[0], train.classes, test.holders[0], test.classes),
        (test.holders[0], test.classes, train.holders[0], train.classes),
    ):
        if missing := [name for name in files if name not in others]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{lack} has no folder for the class {missing[0]!r}{more} of {have}")
    return [train, test]


def _parted(images: Decoded) -> tuple[Decoded, Decoded]:
    """To train on, and to test on."""
    listing, first = images.listing, 0
    out = torch.zeros(len(listing), dtype=torch.bool)
    for name, count in listing.classes.items():
        if count < 2:
            raise UserError(f"{listing.holders[0]}/{name} holds one image: too few to part")
        rows = range(first, first + count)
        by_name = sorted(rows, key=lambda i: zlib.crc32(os.fsencode(listing.names[i])))
        out[by_name[: max(1, round(HELD_OUT * count))]] = True
        first += count
    if os.environ.get("RANK", "0") == "0":
        say(
            f"{listing.holders[0]} is not parted into train and val: {int(out.sum())} of "
            f"{len(out)} images, the same ones in every run, are held out to test on"
        )
    return images.part((~out).nonzero().flatten()), images.part(out.nonzero().flatten())
