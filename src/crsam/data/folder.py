"""Images in folders: ``train/CLASS/*`` and ``val/CLASS/*``, as ImageNet is usually unpacked."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from crsam.data.images import Dataset, Held, Images, check_labels
from crsam.errors import UserError
from crsam.progress import Advance, bar

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif")
HOLD_LIMIT = 4 << 30
"""Bytes up to which a set, training and test images together, is held decoded."""
CHUNK = 1024
"""Images that wait for the pool at a time."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Size = tuple[int, int]
"""Width and height, as Pillow has them."""


def read_folder(root: Path, *, image_size: int | None = None, hold: bool | None = None) -> Dataset:
    """The images of ``root/train/CLASS`` and of ``root/val/CLASS``, or ``root/test/CLASS``.

    Classes are numbered in the order of their names. Hidden files and files that are no images by
    their suffix are ignored; a folder in a class's folder, or an image outside of one, is refused,
    for it means another layout. Mean and standard deviation are ImageNet's usual ones.

    Args:
        root: Holds the two folders.
        image_size: Side of the square that the middle of each image is scaled to. None: as they
            are, and all must be of one size; no side would do for images of 32 pixels and for
            photographs alike.
        hold: Whether to decode all images now and hold them as bytes, rather than decode each
            whenever it is fetched. None: if they are no more than `HOLD_LIMIT` bytes.

    Raises:
        UserError: If folders are missing or do not fit together, or an image cannot be read.
    """
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise UserError(f"image_size must be a whole number of at least 1, got {image_size!r}")
    _check_pillow()
    train, test = _find(root)
    train_paths, test_paths = _flat(train), _flat(test)
    size = _open(train_paths[0], image_size).size
    num_bytes = (len(train_paths) + len(test_paths)) * 3 * size[0] * size[1]
    held = num_bytes <= HOLD_LIMIT if hold is None else hold

    def images(label: str, paths: list[str], classes: dict[str, list[str]]) -> Images:
        labels = torch.repeat_interleave(torch.tensor([len(each) for each in classes.values()]))
        if held:
            with bar(f"decoding {label}", len(paths)) as advance:
                return Held(decode(paths, size, image_size, advance), labels)
        if image_size is None:
            raise UserError(
                f"image_size must be given for {root}: its images take {num_bytes / 2**30:.1f} GiB "
                "and are not held, so nothing has made sure that they are of one size"
            )
        return Decoded(paths, labels, image_size)

    return Dataset(
        train=images("training images", train_paths, train),
        test=images("test images", test_paths, test),
        classes=tuple(train),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


class Decoded(Images):
    """Images that are decoded whenever they are fetched, several at a time.

    Decoding is deterministic: the bytes are the very ones that are held where there is room.

    Args:
        paths: The files.
        labels: Whole numbers, one for each file. Images are fetched to their device.
        image_size: Side of the square that the middle of each image is scaled to.
    """

    def __init__(self, paths: Sequence[str], labels: Tensor, image_size: int) -> None:
        check_labels(labels, len(paths))
        self.paths, self.labels, self.image_size = paths, labels, image_size

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.image_size, self.image_size

    def fetch(self, indices: Tensor) -> Tensor:
        paths = [self.paths[i] for i in indices.tolist()]
        size = (self.image_size, self.image_size)
        return decode(paths, size, self.image_size).to(self.device)

    def part(self, indices: Tensor) -> Decoded:
        rows = torch.arange(len(self))[indices.cpu()]
        paths = [self.paths[i] for i in rows.tolist()]
        return Decoded(paths, self.labels[indices.to(self.device)], self.image_size)

    def with_labels(self, labels: Tensor) -> Decoded:
        return Decoded(self.paths, labels.to(self.device), self.image_size)

    def to(self, device: torch.device) -> Decoded:
        return Decoded(self.paths, self.labels.to(device), self.image_size)


class Packed(NamedTuple):
    """An image out of an archive."""

    name: str
    """Of archive and image, for messages."""
    content: bytes

    def __str__(self) -> str:
        return self.name


def decode(
    paths: Sequence[str | Packed],
    size: Size,
    image_size: int | None,
    advance: Advance | None = None,
) -> Tensor:
    """The bytes of all images, of shape (n, 3, H, W).

    Args:
        paths: The files, or what is in them.
        size: That all must have.
        image_size: Side of the square that the middle of each is scaled to; None: as they are.
        advance: Called after each.
    """
    width, height = size
    if not paths:
        return torch.empty(0, 3, height, width, dtype=torch.uint8)
    each = 3 * height * width
    memory = bytearray(len(paths) * each)
    view = memoryview(memory)

    # No torch in here: it would start threads of its own in each of the pool's.
    def decode(i: int) -> None:
        image = _open(paths[i], image_size)
        if image.size != size:
            raise UserError(
                f"{paths[i]} has {image.width} × {image.height} pixels where others have "
                f"{width} × {height}: give image_size, to which all are scaled"
            )
        planes = b"".join(channel.tobytes() for channel in image.split())
        view[i * each : (i + 1) * each] = planes

    pool = _pool(os.getpid())
    for start in range(0, len(paths), CHUNK):
        for _ in pool.map(decode, range(start, min(start + CHUNK, len(paths)))):
            if advance is not None:
                advance()
    return torch.frombuffer(memory, dtype=torch.uint8).view(-1, 3, height, width)


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process, because a forked one has none of its parent's threads."""
    return ThreadPoolExecutor(thread_name_prefix=f"decode-{process}")


def _open(path: str | Packed, image_size: int | None) -> Image.Image:
    """The decoded image, in RGB, its middle scaled to a square if a size is given.

    A rotation noted in the file is ignored, as usual for ImageNet.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path if isinstance(path, str) else io.BytesIO(path.content)) as file:
            deep = file.mode.startswith(("I", "F"))
            # By way of RGBA, or Pillow warns of palettes with transparent colours.
            seen = file.convert("RGBA") if "transparency" in file.info else file
            image = seen.convert("RGB")
    except Exception as error:  # of a damaged file, a decoder may raise anything
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as an image: {reason}") from None
    if deep:
        raise UserError(f"{path} has more than 8 bits a pixel: convert it to 8")
    if image_size is None:
        return image
    return ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError(
            "images in folders are read with Pillow, which is not installed: pip install pillow"
        ) from None


def _find(root: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The files of each class, of training and test set."""
    train, test = root / "train", root / "val"
    if not test.is_dir() and (root / "test").is_dir():
        test = root / "test"
    for folder in (train, test):
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {folder}: images are read from {root}/train/CLASS and "
                f"{root}/val/CLASS (or {root}/test/CLASS)"
            )
    train_files, test_files = _files_by_class(train), _files_by_class(test)
    for have, files, lack, others in (
        (train, train_files, test, test_files),
        (test, test_files, train, train_files),
    ):
        if missing := [name for name in files if name not in others]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{lack} has no folder for the class {missing[0]!r}{more} of {have}")
    return train_files, test_files


def _files_by_class(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in _visible(folder):
        if entry.is_dir():
            found[entry.name] = _files_of_class(entry)
        elif _is_image(entry):
            raise UserError(f"{entry.path} must lie in the folder of its class, {folder}/CLASS")
    if not found:
        raise UserError(f"{folder} has no folders of classes: there are no images")
    return found


def _files_of_class(folder: os.DirEntry[str]) -> list[str]:
    paths = []
    for entry in _visible(folder):
        if entry.is_dir():
            raise UserError(
                f"{entry.path} is a folder in the folder of a class: images must lie right in "
                f"{folder.path}"
            )
        if _is_image(entry):
            paths.append(entry.path)
    if not paths:
        raise UserError(f"{folder.path} holds no images ({' '.join(s[1:] for s in SUFFIXES)})")
    return paths


def _visible(folder: Path | os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, by name: the order of a file system is its own."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    yield from sorted(shown, key=lambda entry: entry.name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES)


def _flat(classes: dict[str, list[str]]) -> list[str]:
    return [path for paths in classes.values() for path in paths]
