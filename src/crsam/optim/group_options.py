"""The hyper-parameters of one step: ρ after its warm-up, or after the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crsam.optim.part import Part, non_negative
from crsam.optim.state import COUNTER, LR_MAX


@dataclass(frozen=True)
class FollowLearningRate:
    r"""$\rho_t = \rho_{min} + (\rho - \rho_{min})\,(\eta - \eta_{min})/(\eta_{max} - \eta_{min})$.

    Kept between $\rho_{min}$ and $\rho$, so that a learning rate outside its range (a warm-up from
    below $\eta_{min}$, say) never makes $\rho$ negative. From GSAM (Zhuang et al., 2022).

    Args:
        rho_min: ρ at the lowest learning rate.
        lr_max: The highest learning rate; None: that of a scheduler which says so in the groups
            (``OneCycleLR``), else the group's when the optimizer is made, before any scheduler that
            is already attached has changed it.
        lr_min: The lowest.
        relative: Read `rho_min` as a share of the group's ρ, as R-SAM does.
    """

    rho_min: float = 0.0
    lr_max: float | None = None
    lr_min: float = 0.0
    relative: bool = False

    def __post_init__(self) -> None:
        for name in ("rho_min", "lr_min") + (("lr_max",) if self.lr_max is not None else ()):
            non_negative(name, getattr(self, name))
        if self.lr_max is not None and not self.lr_max > self.lr_min:
            raise ValueError(f"lr_max must be above lr_min = {self.lr_min}, got {self.lr_max}")

    def __call__(self, rho: float | Tensor, lr: float | Tensor, lr_max: float) -> Any:
        if lr_max <= self.lr_min:  # a group that is not trained: nothing to follow
            return rho
        share = (lr - self.lr_min) / (lr_max - self.lr_min)
        if isinstance(share, Tensor):
            share = torch.clamp(share, 0.0, 1.0)
        else:
            share = min(max(share, 0.0), 1.0)
        rho_min = self.rho_min * rho if self.relative else self.rho_min
        return rho_min + (rho - rho_min) * share


def warmup_factor(count: int, warmup: int) -> float:
    """Returns by what ρ is multiplied: ``1/warmup`` at the first step, 1 from step `warmup` on."""
    return min(1.0, (count + 1) / warmup) if warmup else 1.0


def resolve(
    groups: Sequence[Mapping[str, Any]],
    keys: Mapping[str, str],
    parts: Sequence[Part],
    warmup: int,
    follow: FollowLearningRate | None,
) -> dict[str, list[float | Tensor]]:
    """Returns the value of each hyper-parameter in this step, for each group.

    Args:
        groups: Parameter groups.
        keys: The names of the hyper-parameters, with their keys in the groups.
        parts: The method.
        warmup: Number of steps over which ρ rises to its value.
        follow: Makes ρ follow the learning rate.
    """
    return {
        name: [_value(group, name, key, parts, warmup, follow) for group in groups]
        for name, key in keys.items()
    }


def _value(
    group: Mapping[str, Any],
    name: str,
    key: str,
    parts: Sequence[Part],
    warmup: int,
    follow: FollowLearningRate | None,
) -> float | Tensor:
    value: float | Tensor = group[key]
    if name == "rho":
        if follow is not None:
            lr_max = follow.lr_max or group.get("max_lr") or group[LR_MAX]
            value = follow(value, group["lr"], lr_max)
        value = value * warmup_factor(group[COUNTER], warmup)
    for part in parts:
        if name in part.group_options and (factor := part.factor(name, group[COUNTER])) != 1:
            value = value * factor
    return value
