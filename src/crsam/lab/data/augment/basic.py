"""The augmentation of almost every CIFAR result: a flip and a crop of the padded image.

Lee et al., "Deeply-Supervised Nets", 2015, and He et al., "Deep Residual Learning", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crsam.lab.data.augment.affine import pick
from crsam.lab.data.augment.base import Augmentation, check_count, check_number


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Left and right exchanged where `flipped`.

    Args:
        images: Of shape (N, C, H, W).
        flipped: Booleans of shape (N,).

    Example:
        >>> x = torch.tensor([1, 2, 3]).expand(2, 1, 1, 3)
        >>> flip(x, torch.tensor([True, False])).flatten(1).tolist()
        [[3, 2, 1], [1, 2, 3]]
    """
    return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)


def padded_crop(images: Tensor, top: Tensor, left: Tensor, pad: int = 4) -> Tensor:
    """A window of the images' own size out of the images with a black border.

    Args:
        images: Bytes of shape (N, C, H, W).
        top: First row of each window in the padded image, of shape (N,).
        left: First column.
        pad: Width of the border.

    Example:
        >>> x = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
        >>> padded_crop(x, torch.tensor([1]), torch.tensor([0]), pad=1).flatten().tolist()
        [0, 1, 2]
    """
    height, width = images.shape[2:]
    rows = torch.arange(-pad, height - pad, device=images.device) + top.view(-1, 1)
    columns = torch.arange(-pad, width - pad, device=images.device) + left.view(-1, 1)
    return pick(images, rows.unsqueeze(2), columns.unsqueeze(1), fill=0)


@dataclass(frozen=True)
class Flip(Augmentation):
    """A horizontal flip.

    Args:
        flip_share: Its probability.

    Example:
        >>> x = torch.tensor([1, 2, 3], dtype=torch.uint8).view(1, 1, 1, 3)
        >>> Flip(flip_share=1.0)(x, torch.Generator()).flatten().tolist()
        [3, 2, 1]
    """

    flip_share: float = 0.5

    def __post_init__(self) -> None:
        check_number("flip_share", self.flip_share, 0, 1)

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        return flip(images, *draws)

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor]:
        """Whether to flip, of shape (N,)."""
        draws = torch.rand(len(images), device=images.device, generator=generator)
        return (draws < self.flip_share,)


@dataclass(frozen=True)
class Basic(Augmentation):
    """A horizontal flip, then a random crop of the padded image.

    Args:
        pad: Width of the black border; all (2 `pad` + 1)² windows are equally likely.
        flip_share: Probability of the flip.

    Example:
        >>> x = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> Basic()(x, torch.Generator()).shape
        torch.Size([2, 3, 8, 8])
    """

    pad: int = 4
    flip_share: float = 0.5

    def __post_init__(self) -> None:
        check_count("pad", self.pad, 0)
        check_number("flip_share", self.flip_share, 0, 1)

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        flipped, top, left = draws
        return padded_crop(flip(images, flipped), top, left, self.pad)

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Whether to flip, and the first row and column of the window, each of shape (N,)."""
        n, device = len(images), images.device
        flipped = torch.rand(n, device=device, generator=generator) < self.flip_share
        window = torch.randint(2 * self.pad + 1, (2, n), device=device, generator=generator)
        return flipped, window[0], window[1]
