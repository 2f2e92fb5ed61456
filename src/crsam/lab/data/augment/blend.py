"""Images between an image and a duller one, in the arithmetic of Pillow's ``ImageEnhance``."""

from __future__ import annotations

import torch
from torch import Tensor


def blend(dull: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    r"""$\lfloor d + f\,(x - d) \rfloor$, clipped to bytes: `dull` at $f = 0$, `images` at 1.

    In single precision with a rounding after each operation, as in C; a compiler that fuses the
    product into the sum may be off by one.

    Args:
        dull: Bytes or floats that broadcast to `images`.
        images: Bytes.
        factor: Broadcasts to `images`; may lie outside 0 and 1.

    Example:
        >>> black, x = torch.tensor([0, 0], dtype=torch.uint8), torch.tensor([3, 200])
        >>> blend(black, x, torch.tensor([0.5, 1.5])).tolist()
        [1, 255]
    """
    dull = dull.float()
    return ((images - dull) * factor.float()).add_(dull).clamp_(0, 255).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """The luma (ITU-R 601-2) in bytes, of shape (N, 1, H, W); a grey image is its own."""
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:
        raise ValueError(f"images must have 1 or 3 channels, got {images.shape[1]}")
    red, green, blue = images.int().unbind(1)
    luma = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16
    return luma.to(torch.uint8).unsqueeze(1)


def mean_grey(images: Tensor) -> Tensor:
    """The mean of the luma, to the nearest whole number, of shape (N, 1, 1, 1)."""
    pixels = images.shape[2] * images.shape[3]
    total = grey(images).sum((1, 2, 3), keepdim=True, dtype=torch.int64)
    return (2 * total + pixels) // (2 * pixels)


def smooth(images: Tensor) -> Tensor:
    """Each pixel with its eight neighbours, weighed 5 to 1 each; the border stays as it is."""
    height, width = images.shape[2:]
    out = images.clone()
    if min(height, width) < 3:
        return out
    x = images.to(torch.int16)
    across = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    total = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :]
    total += 4 * x[..., 1:-1, 1:-1]
    # No total is near a half of 13, so that the rounding is the same in any arithmetic.
    out[..., 1:-1, 1:-1] = (total.float() / 13 + 0.5).to(torch.uint8)
    return out
