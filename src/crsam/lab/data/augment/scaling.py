"""From bytes to what a network is fed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crsam.lab.data.augment.base import check_images, constant


def normalize(
    images: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(images / 255 − mean) / std``, computed in single precision.

    Args:
        images: Bytes of shape (N, C, H, W).
        mean: Of each channel (or one for all), where the bytes are numbers from 0 to 1.
        std: Likewise.
        dtype: Of the result.

    Example:
        >>> x = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> normalize(x, mean=[0.5], std=[0.25]).flatten().tolist()
        [-2.0, 2.0]
    """
    channels = check_images(images).shape[1]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise ValueError(f"{name} must have 1 or {channels} values, got {len(values)}")
    if not all(s > 0 for s in std):
        raise ValueError(f"std must be above 0, got {tuple(std)}")
    shift = constant(tuple(255 * m for m in mean), torch.float32, images.device)
    scale = constant(tuple(1 / (255 * s) for s in std), torch.float32, images.device)
    return ((images - shift.view(-1, 1, 1)) * scale.view(-1, 1, 1)).to(dtype)
