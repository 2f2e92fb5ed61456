"""What micro-batches and processes that climb each on their own follow together."""

from __future__ import annotations

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.step import Step


class Average:
    """The weighted mean of what several micro-batches, one after the other, would follow.

    So is what they would remember; decisions (masks, whether to pay) are the first one's.

    Args:
        step: Of the first one; what is averaged ends up in it.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.loss = torch.zeros(())
        self.surrogate: Tensors = []
        self._report: dict[str, Tensor] = {}
        self._kept: dict[str, Tensors] = {}
        self._direct: Tensors = []

    def add(self, weight: float, step: Step, loss: Tensor, surrogate: Tensors) -> None:
        """Takes in one of them."""
        self.loss = self.loss + weight * loss
        _accumulate(self.surrogate, surrogate, weight)
        for name, value in step.report.items():
            self._report[name] = weight * value + self._report.get(name, 0.0)
        for name, tensors in step.kept.items():
            if tensors[0].is_floating_point():
                _accumulate(self._kept.setdefault(name, []), tensors, weight)
        _accumulate(self._direct, step.direct or [], weight)
        self.step.report = dict(self._report)
        self.step.kept |= self._kept
        self.step.direct = self._direct or None


def average_over_ranks(step: Step, surrogate: Tensors) -> None:
    """In place, over processes that climbed each on its own: all that must be the same in each."""
    kept = [t for tensors in step.kept.values() for t in tensors if t.is_floating_point()]
    step.parallel.everyone.mean_([*surrogate, *kept, *(step.direct or [])])


def _accumulate(total: Tensors, tensors: Tensors, weight: float) -> None:
    """``total + weight·tensors``, in place; an empty total is 0."""
    if total:
        tn.add_(total, tensors, weight)
    elif tensors:
        # Copies: the next micro-batch may write over the same memory.
        total += tn.scale_(tn.clone(tensors), weight)
