"""Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", 2018."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from crsam.lab.data.augment.base import Augmentation, check_number
from crsam.lab.data.augment.levels import Levels, Size, of_code, of_paper
from crsam.lab.data.augment.ops import Op, apply_op
from crsam.lab.data.augment.policies import CIFAR10, IMAGENET, Policy

_POLICIES: dict[str, tuple[Policy, str]] = {
    "cifar10": (CIFAR10, "code"),
    "imagenet": (IMAGENET, "paper"),
}
_LEVELS: dict[str, Levels] = {"code": of_code, "paper": of_paper}


@dataclass(frozen=True)
class AutoAugment(Augmentation):
    """A sub-policy for each image: two operations, each applied with its own probability.

    Args:
        policy: ``"cifar10"`` or ``"imagenet"``, as published, or sub-policies of your own.
        levels: What a level means, where the paper and the authors' code differ: ``"code"``, the
            code for CIFAR-10, or ``"paper"``, Table 6; see `crsam.lab.data.augment.levels`. None:
            ``"code"`` for ``"cifar10"``, whose published results it made, and ``"paper"`` else.

    Example:
        >>> x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> AutoAugment()(x, torch.Generator()).shape
        torch.Size([2, 3, 32, 32])
    """

    policy: str | Policy = "cifar10"
    levels: Literal["code", "paper"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy not in _POLICIES:
            raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, got {self.policy!r}")
        if self.levels not in (None, *_LEVELS):
            raise ValueError(f"levels must be one of {', '.join(_LEVELS)}, got {self.levels!r}")
        for name, share, _ in (step for pair in self.sub_policies for step in pair):
            check_number(f"the probability of {name}", share, 0, 1)
            if name.upper() not in Op.__members__:
                raise ValueError(f"unknown operation {name!r} in the policy")

    @property
    def sub_policies(self) -> Policy:
        return _POLICIES[self.policy][0] if isinstance(self.policy, str) else self.policy

    @property
    def _levels(self) -> Levels:
        default = _POLICIES[self.policy][1] if isinstance(self.policy, str) else "paper"
        return _LEVELS[self.levels or default]

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        ops, magnitudes = draws
        for position in (0, 1):
            among = {Op[pair[position][0].upper()] for pair in self.sub_policies}
            images = apply_op(images, ops[position], magnitudes[position], among=among)
        return images

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The operations and magnitudes of each image, first and second, each of shape (2, N)."""
        n, device = len(images), images.device
        size = (images.shape[2], images.shape[3])
        shares, ops, centres, swings = _tables(self.sub_policies, self._levels, size, device)
        chosen = torch.randint(shares.shape[1], (n,), device=device, generator=generator)
        happens = torch.rand(2, n, device=device, generator=generator) < shares[:, chosen]
        signs = torch.randint(2, (2, n), device=device, generator=generator) * 2 - 1
        magnitudes = centres[:, chosen] + signs * swings[:, chosen]
        return ops[:, chosen] * happens, magnitudes


@functools.lru_cache(maxsize=64)
def _tables(
    policy: Policy, levels: Levels, size: Size, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probabilities, operations, centres and swings, each of shape (2, sub-policies).

    Made once, as a copy to the device makes the host wait.
    """
    positions = [[(Op[n.upper()], p, level) for n, p, level in steps] for steps in zip(*policy)]
    magnitudes = [[levels(op, level, size) for op, _, level in steps] for steps in positions]
    centres, swings = torch.tensor(magnitudes, dtype=torch.float64, device=device).unbind(2)
    return (
        torch.tensor([[share for _, share, _ in row] for row in positions], device=device),
        torch.tensor([[op.value for op, _, _ in row] for row in positions], device=device),
        centres,
        swings,
    )
