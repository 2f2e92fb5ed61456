"""DeVries and Taylor, "Improved Regularization of CNNs with Cutout", 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crsam.lab.data.augment.base import Augmentation, check_count, check_number, constant

CIFAR10_MEAN = (125, 123, 114)
"""The mean colour of CIFAR-10's training images, in bytes."""


def cut(
    images: Tensor, rows: Tensor, columns: Tensor, side: int = 16, fill: tuple[int, ...] = (0,)
) -> Tensor:
    """A square of each image replaced by a colour; what lies outside the image is not cut.

    Args:
        images: Bytes of shape (N, C, H, W).
        rows: Of the squares' centres, of shape (N,). An even side reaches one pixel farther up
            than down, and left than right.
        columns: Of the centres.
        side: Of the squares, in pixels.
        fill: The colour, a byte for each channel or one for all.

    Example:
        >>> x = torch.arange(1, 6, dtype=torch.uint8).view(1, 1, 1, 5)
        >>> cut(x, torch.tensor([0]), torch.tensor([3]), side=2).flatten().tolist()
        [1, 2, 0, 0, 5]
    """
    channels, height, width = images.shape[1:]
    if len(fill) not in (1, channels):
        raise ValueError(f"fill must have 1 or {channels} bytes for these images, got {fill}")
    y = torch.arange(side // 2, height + side // 2, device=images.device) - rows.view(-1, 1)
    x = torch.arange(side // 2, width + side // 2, device=images.device) - columns.view(-1, 1)
    tall, wide = (y >= 0) & (y < side), (x >= 0) & (x < side)
    inside = tall.view(-1, 1, height, 1) & wide.view(-1, 1, 1, width)
    colour = constant(fill, torch.uint8, images.device).view(1, -1, 1, 1)
    return torch.where(inside, colour, images)


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Replaces a square at a random place by the mean colour.

    The centre of the square is uniform over the pixels, so part of the square may lie outside.

    Args:
        side: Side of the square in pixels. The Cutout paper uses 16 for CIFAR-10 and 8 for
            CIFAR-100. The papers on SAM use 16.
        fill: The colour: one byte for each channel, or one byte for all. The mean colour becomes
            about 0 when the images are normalized.
        share: Probability that an image is cut. The Cutout paper cuts every image. The code of the
            CR-SAM paper cuts an image with probability 0.5.
    """

    side: int = 16
    fill: tuple[int, ...] = CIFAR10_MEAN
    share: float = 1.0

    def __post_init__(self) -> None:
        check_count("side", self.side, 1)
        check_number("share", self.share, 0, 1)
        for byte in self.fill:
            check_count("fill", byte, 0)
            if byte > 255:
                raise ValueError(f"fill must hold bytes, got {self.fill}")

    def check_size(self, height: int, width: int) -> None:
        most = 2 * max(height, width)  # with its centre in a corner it covers a half each way
        if self.side >= most:
            raise ValueError(
                f"side must be below {most}, or nothing is left of images of {height} × {width}, "
                f"got {self.side}"
            )

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        rows, columns = draws
        return cut(images, rows, columns, self.side, self.fill)

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Row and column of the centres, each of shape (N,).

        The square of an image that is not cut lies outside the image.
        """
        n, _, height, width = images.shape
        rows, columns = (
            torch.randint(size, (n,), device=images.device, generator=generator)
            for size in (height, width)
        )
        if self.share < 1:  # without a draw otherwise, so that older runs see the same images
            is_cut = torch.rand(n, device=images.device, generator=generator) < self.share
            rows = torch.where(is_cut, rows, -self.side)
        return rows, columns
