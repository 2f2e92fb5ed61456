"""The operations of AutoAugment on whole batches, each image with its own.

Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", 2018, Table 6, by nearest
neighbour. Results are those of Pillow, equal in every byte in eager mode. (A shift less than 2⁻¹⁷
short of half a pixel is the exception: Pillow keeps more digits of shifts alone.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum

import torch
from torch import Tensor

from crsam.lab.data.augment import tables
from crsam.lab.data.augment.affine import GREY, affine
from crsam.lab.data.augment.base import check_images
from crsam.lab.data.augment.blend import blend, grey, smooth
from crsam.lab.data.augment.tables import look_up


class Op(IntEnum):
    """What can be done to an image; in brackets what its magnitude is."""

    IDENTITY = 0
    SHEAR_X = 1  # columns to the right for each row down
    SHEAR_Y = 2  # rows down for each column to the right
    TRANSLATE_X = 3  # columns to the right, in the source
    TRANSLATE_Y = 4  # rows down, in the source
    ROTATE = 5  # degrees, counter-clockwise
    AUTOCONTRAST = 6
    EQUALIZE = 7
    INVERT = 8
    POSTERIZE = 9  # bits that are kept
    SOLARIZE = 10  # the byte from which on it inverts
    SOLARIZE_ADD = 11  # what is added to the bytes below 128
    BRIGHTNESS = 12  # 0: black, 1: the image
    CONTRAST = 13  # 0: its mean grey, 1: the image
    COLOR = 14  # 0: grey, 1: the image
    SHARPNESS = 15  # 0: smoothed, 1: the image


_ALL = tuple(Op)  # torch 2.6 cannot compile a look through an enumeration

_AFFINE = {
    Op.SHEAR_X: "shear_x",
    Op.SHEAR_Y: "shear_y",
    Op.TRANSLATE_X: "translate_x",
    Op.TRANSLATE_Y: "translate_y",
    Op.ROTATE: "degrees",
}
_TABLES: dict[Op, Callable[[Tensor, Tensor], Tensor]] = {
    Op.AUTOCONTRAST: tables.autocontrast,
    Op.EQUALIZE: tables.equalize,
    Op.INVERT: tables.invert,
    Op.POSTERIZE: tables.posterize,
    Op.SOLARIZE: tables.solarize,
    Op.SOLARIZE_ADD: tables.solarize_add,
    Op.BRIGHTNESS: tables.brightness,
    Op.CONTRAST: tables.contrast,
}
_BLENDS: dict[Op, Callable[[Tensor], Tensor]] = {Op.COLOR: grey, Op.SHARPNESS: smooth}


def apply_op(
    images: Tensor,
    op: Tensor | Op,
    magnitude: Tensor | float = 0.0,
    *,
    among: Collection[Op] | None = None,
    fill: int = GREY,
) -> Tensor:
    """One operation on each image.

    To sort the images by operation would need their numbers on the host. Instead all images pass
    three cheap stages that are the identity for those they do not concern: one affine warp, one
    look-up in a table of 256 bytes, one blend with a duller image.

    Args:
        images: Bytes of shape (N, C, H, W), with 1 or 3 channels.
        op: Members of `Op`, of shape (N,), or one for all.
        magnitude: Of shape (N,), or one for all; see `Op`. Double precision makes the warps equal
            Pillow's.
        among: The operations that `op` may hold: what only others need is left out. None: any.
        fill: The byte that a warp puts where the image has no pixel.

    Example:
        >>> x = torch.tensor([0, 100, 200, 255], dtype=torch.uint8).expand(2, 1, 1, 4)
        >>> op = torch.tensor([Op.INVERT, Op.SOLARIZE])
        >>> apply_op(x, op, torch.tensor([0.0, 128.0])).flatten(1).tolist()
        [[255, 155, 55, 0], [0, 100, 55, 0]]
    """
    check_images(images)
    if among is None:
        among = (op,) if isinstance(op, Op) else _ALL
    op, magnitude = (_per_image(value, images) for value in (op, magnitude))
    for stage in (_affine, _look_up, _blend):
        images = stage(images, op, magnitude, among, fill)
    return images


def _per_image(value: Tensor | float, images: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    dtype = torch.int64 if isinstance(value, Op) else torch.float64
    return torch.full(images.shape[:1], value, dtype=dtype, device=images.device)


def _affine(
    images: Tensor, op: Tensor, magnitude: Tensor, among: Collection[Op], fill: int
) -> Tensor:
    amounts = {name: magnitude * (op == o.value) for o, name in _AFFINE.items() if o in among}
    return affine(images, **amounts, fill=fill) if amounts else images


def _look_up(
    images: Tensor, op: Tensor, magnitude: Tensor, among: Collection[Op], fill: int
) -> Tensor:
    chosen = [o for o in _TABLES if o in among]
    table = tables.identity(images, magnitude)
    for o in chosen:
        table = torch.where((op == o.value).view(-1, 1, 1), _TABLES[o](images, magnitude), table)
    return look_up(images, table) if chosen else images


def _blend(
    images: Tensor, op: Tensor, magnitude: Tensor, among: Collection[Op], fill: int
) -> Tensor:
    dull, factor = images, torch.ones_like(magnitude)
    for o in (o for o in _BLENDS if o in among):
        concerns = op == o.value
        dull = torch.where(concerns.view(-1, 1, 1, 1), _BLENDS[o](images), dull)
        factor = torch.where(concerns, magnitude, factor)
    return images if dull is images else blend(dull, images, factor.view(-1, 1, 1, 1))
