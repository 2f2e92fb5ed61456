"""Images of other sets than a run's own, batch by batch, in the size that its model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from crsam.data.decoder import View, in_colour, middle_of
from crsam.errors import UserError

Prepare = Callable[[Image.Image, int], Image.Image]
Labelled = tuple[Tensor, Tensor]
"""Bytes of shape (n, 3, H, W), and labels."""


def whole(picture: Image.Image, side: int) -> Image.Image:
    """All of an image that was cut out already: ImageNet-C's are squares, often of this size."""
    if picture.size == (side, side):
        return picture
    return ImageOps.fit(picture, (side, side), Image.Resampling.BILINEAR)


def framed(share: float | None) -> Prepare:
    """As a set of folders shows its test images: see `middle` of `read_folder`."""

    def prepare(picture: Image.Image, side: int) -> Image.Image:
        return middle_of(picture, View(side, side, middle=share), picture.size)

    return prepare


def of_files(
    paths: Sequence[str],
    labels: Sequence[int],
    side: int,
    prepare: Prepare,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Labelled]:
    """Every `world_size`-th batch of the files, from the one numbered `rank` on.

    Several are decoded at a time, and the next batch while this one is looked at.

    Raises:
        UserError: If a file cannot be read: a score without it would be of another set.
    """

    def decode(path: str) -> npt.NDArray[np.uint8]:
        try:
            with Image.open(path) as file:
                return np.asarray(prepare(in_colour(file), side))
        except Exception as error:  # of a damaged file, a decoder may raise anything
            reason = " ".join(str(error).split())
            raise UserError(f"{path} cannot be read as an image: {reason}") from None

    starts = range(rank * batch_size, len(paths), world_size * batch_size)
    with ThreadPoolExecutor() as pool:

        def submit(start: int) -> list[Future[npt.NDArray[np.uint8]]]:
            return [pool.submit(decode, path) for path in paths[start : start + batch_size]]

        waiting = submit(starts[0]) if starts else []
        for start, following in pairwise([*starts, None]):
            assert start is not None
            ready, waiting = waiting, [] if following is None else submit(following)
            pixels = np.stack([future.result() for future in ready])
            yield (
                torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
                torch.tensor(labels[start : start + batch_size]),
            )


def of_array(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Labelled]:
    """The same of an array of shape (N, H, W, 3)."""
    for start in range(rank * batch_size, len(images), world_size * batch_size):
        part = slice(start, start + batch_size)
        pixels = torch.from_numpy(np.array(images[part]))
        yield pixels.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(np.array(labels[part]))
