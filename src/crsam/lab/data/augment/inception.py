"""The augmentation of almost every ImageNet result: a part of the image, scaled to the whole.

Szegedy et al., "Going Deeper with Convolutions", 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crsam.lab.data.augment.base import Augmentation, check_number
from crsam.lab.data.augment.basic import flip


def scaled_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """A window of each image, scaled to the image's own size, bilinearly.

    Args:
        images: Bytes of shape (N, C, H, W).
        top: Upper edge of each window, as a share of the image's height, of shape (N,).
        left: Left edge, as a share of its width.
        height: Height of the window, as a share.
        width: Width of the window, as a share.

    Example:
        >>> x = torch.tensor([[[[10, 30, 50, 90]]]], dtype=torch.uint8)
        >>> half = torch.tensor([0.5])
        >>> scaled_crop(x, 0 * half, half, 2 * half, half).flatten().tolist()
        [45, 60, 80, 90]
    """
    nothing = torch.zeros_like(top)
    rows = torch.stack([width, nothing, 2 * left + width - 1], 1)
    columns = torch.stack([nothing, height, 2 * top + height - 1], 1)
    theta = torch.stack([rows, columns], 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return sampled.round().clamp(0, 255).byte()


@dataclass(frozen=True)
class Inception(Augmentation):
    """A window of random area and shape, scaled to the whole image, then a horizontal flip.

    The window is one of the image as it is held, a square for images out of folders; out of folders
    that are not held, recipes take it from the whole photograph instead. Where a window
    would be longer than the image it is cut, and none is drawn anew: nothing waits for the draws.

    Args:
        least: The smallest area of a window, as a share of the image's; the largest is 1.
        shape: The widest ratio of its sides; the narrowest is one over it.
        flip_share: Probability of the flip.

    Example:
        >>> x = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> Inception()(x, torch.Generator()).shape
        torch.Size([2, 3, 8, 8])
    """

    least: float = 0.08
    shape: float = 4 / 3
    flip_share: float = 0.5

    def __post_init__(self) -> None:
        check_number("least", self.least, 0, 1)
        check_number("shape", self.shape, 1)
        check_number("flip_share", self.flip_share, 0, 1)

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        flipped, *window = draws
        return flip(scaled_crop(images, *window), flipped) if len(images) else images

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Whether to flip; upper edge, left edge, height and width of the window, as shares."""
        draws = torch.rand(5, len(images), device=images.device, generator=generator)
        area = self.least + (1 - self.least) * draws[0]
        stretch = torch.exp((2 * draws[1] - 1) * math.log(self.shape) / 2)
        height = (area.sqrt() / stretch).clamp(max=1)
        width = (area.sqrt() * stretch).clamp(max=1)
        top, left = draws[2] * (1 - height), draws[3] * (1 - width)
        return draws[4] < self.flip_share, top, left, height, width
