"""Cubuk et al., "RandAugment: Practical Automated Data Augmentation", 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crsam.lab.data.augment.base import (
    Augmentation,
    check_count,
    check_number,
    constant,
)
from crsam.lab.data.augment.levels import of_randaugment
from crsam.lab.data.augment.ops import Op, apply_op

OPS = tuple(op for op in Op if op not in (Op.INVERT, Op.SOLARIZE_ADD))
"""The fourteen operations of the paper's list, the identity among them."""


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """Some operations for each image, drawn alike and of one magnitude.

    Args:
        num_ops: Operations an image gets; 2 for ImageNet and 3 for CIFAR-10 in the paper.
        magnitude: From 0 to 10, the strongest of AutoAugment's ranges. (A scale of 30, such as
            that of torchvision, is three times as fine.)

    Example:
        >>> x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> RandAugment(num_ops=3, magnitude=5)(x, torch.Generator()).shape
        torch.Size([2, 3, 32, 32])
    """

    num_ops: int = 2
    magnitude: float = 9.0

    def __post_init__(self) -> None:
        check_count("num_ops", self.num_ops, 1)
        check_number("magnitude", self.magnitude, 0, 10)

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        for op, magnitude in zip(*draws):
            images = apply_op(images, op, magnitude, among=OPS)
        return images

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The operations and magnitudes of each image, each of shape (`num_ops`, N)."""
        n, device = len(images), images.device
        size = (images.shape[2], images.shape[3])
        levels = [of_randaugment(op, self.magnitude, size) for op in OPS]
        centres = constant(tuple(level.centre for level in levels), torch.float64, device)
        swings = constant(tuple(level.swing for level in levels), torch.float64, device)
        ops = constant(tuple(op.value for op in OPS), torch.int64, device)
        shape = (self.num_ops, n)
        chosen = torch.randint(len(OPS), shape, device=device, generator=generator)
        signs = torch.randint(2, shape, device=device, generator=generator) * 2 - 1
        return ops[chosen], centres[chosen] + signs * swings[chosen]
