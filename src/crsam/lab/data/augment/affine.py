"""Shears, shifts and rotations as one affine warp, in the arithmetic of Pillow.

Pillow's ``Image.transform(size, AFFINE, (a, b, c, d, e, f), NEAREST)`` takes pixel (x, y) of the
result from (a x + b y + c, d x + e y + f) of the source, measured at pixel centres, and computes
this with 16 bits after the binary point. So does this module, which makes the two equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

GREY = 128
"""What is put where the source has no pixel."""


def affine(
    images: Tensor,
    *,
    shear_x: Tensor | float = 0.0,
    shear_y: Tensor | float = 0.0,
    translate_x: Tensor | float = 0.0,
    translate_y: Tensor | float = 0.0,
    degrees: Tensor | float = 0.0,
    fill: int = GREY,
) -> Tensor:
    """Each image sheared, shifted or rotated by its own amounts, by nearest neighbour.

    An image should have one amount that is not 0: the amounts are put into one matrix, which is
    the operation's own only then.

    Args:
        images: Bytes of shape (N, C, H, W).
        shear_x: Columns by which the source moves right for each row down, of shape (N,).
        shear_y: Rows by which the source moves down for each column right.
        translate_x: Columns by which the source lies to the right of the result.
        translate_y: Rows by which the source lies below the result.
        degrees: Counter-clockwise, around the centre of the image.
        fill: The byte where the source has no pixel.

    Example:
        >>> row = torch.tensor([[[[1, 2, 3, 4]]]], dtype=torch.uint8)
        >>> affine(row, translate_x=torch.tensor([1.0]), fill=0).flatten().tolist()
        [2, 3, 4, 0]
    """
    n, _, height, width = images.shape
    zero = torch.zeros(n, dtype=torch.float64, device=images.device)
    angle = -torch.deg2rad(zero + degrees)
    cos, sin = angle.cos(), angle.sin()
    # Rotation about the centre, (0, 0) where degrees is 0.
    c = width / 2 - (cos * (width / 2) + sin * (height / 2))
    f = height / 2 - (cos * (height / 2) - sin * (width / 2))
    return _warp(
        images, (cos, sin + shear_x, c + translate_x), (shear_y - sin, cos, f + translate_y), fill
    )


def pick(images: Tensor, rows: Tensor, columns: Tensor, fill: int) -> Tensor:
    """The pixels at `rows` and `columns`, and `fill` where there is none.

    Args:
        images: Bytes of shape (N, C, H, W).
        rows: Whole numbers that broadcast with `columns` to (N, H, W).
        columns: Likewise.
        fill: A byte.
    """
    n, channels, height, width = images.shape
    inside = (rows >= 0) & (rows < height) & ((columns >= 0) & (columns < width))
    index = (rows * width + columns).mul_(inside).long()
    index = index.view(n, 1, height * width).expand(n, channels, height * width)
    taken = images.flatten(2).gather(2, index).view(images.shape)
    return taken.masked_fill_(~inside.unsqueeze(1), fill)


Line = tuple[Tensor, Tensor, Tensor]
"""The factors of x, y and 1 in a coordinate of the source."""


def _warp(images: Tensor, of_x: Line, of_y: Line, fill: int) -> Tensor:
    height, width = images.shape[2:]
    y = torch.arange(height, dtype=torch.int32, device=images.device).view(1, height, 1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    rows, columns = (
        (_fixed(at_0 + by_x * 0.5 + by_y * 0.5) + _fixed(by_y) * y + _fixed(by_x) * x) >> 16
        for by_x, by_y, at_0 in (of_y, of_x)
    )
    return pick(images, rows, columns, fill)


def _fixed(value: Tensor) -> Tensor:
    """To 16 bits after the binary point, as (N, 1, 1)."""
    return (value * 65536 + 0.5).floor().to(torch.int32).view(-1, 1, 1)
