"""What the sparse ascents share: Mi et al., "Make Sharpness-Aware Minimization Stronger", 2022."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.ascent.base import Ascent
from crsam.optim.part import at_least
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class _Masked(Ascent):
    """The gradient's offset where a mask is 1, and 0 elsewhere; the mask is renewed now and then.

    The mask is full until its first renewal, at step `period`: until then this is the plain
    gradient ascent.
    """

    rho: float = 0.05
    sparsity: float = 0.5
    period: int = 100
    hyper: ClassVar[tuple[str, ...]] = ("rho",)
    memory: ClassVar[tuple[str, ...]] = ("mask",)
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, got {self.sparsity}")
        at_least("period", self.period, 1)

    @abstractmethod
    def renew(
        self, step: Step, center: Evaluation, probe: Probe, old: Tensors | None, count: int
    ) -> Tensors:
        """A new mask with `count` entries set; `old` is None where the mask is still full."""

    def fresh(self, p: Tensor) -> Tensor:
        return torch.ones_like(p, dtype=torch.bool)

    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        mask = step.recall("mask", self.fresh)
        if mask is not None:
            mask = [m.bool() for m in mask]  # a plain optimizer's checkpoint makes numbers of it
        if step.count > 0 and step.count % self.period == 0:
            if step.leader is None:
                count = round((1 - self.sparsity) * sum(p.numel() for p in step.params))
                mask = step.agreed(self.renew(step, center, probe, mask, count))
            else:
                mask = step.leader.kept["mask"]
            step.keep("mask", mask)
        scale = step.radius_over(step.grad_norm)
        if mask is None:
            return Offset(list(center.grads), scale)
        return Offset(tn.multiply_(tn.clone(center.grads), mask), scale)
