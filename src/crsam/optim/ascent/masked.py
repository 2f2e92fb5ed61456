"""The sparse ascents of SSAM: the gradient's offset in some weights, and 0 in the others.

Mi et al., "Make Sharpness-Aware Minimization Stronger: A Sparsified Approach", 2022.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.context import StepContext
from crsam.optim.part import Ascent, at_least, share
from crsam.optim.probe import Evaluation, Offset, Probe


@dataclass(frozen=True)
class _Masked(Ascent):
    """The gradient's offset where a mask is 1, and 0 elsewhere; the mask is renewed now and then.

    The mask is full until its first renewal, at step `period`: until then this is the plain
    gradient ascent.
    """

    rho: float = 0.05
    sparsity: float = 0.5
    period: int = 100
    group_options: ClassVar[tuple[str, ...]] = ("rho",)
    tensor_state: ClassVar[tuple[str, ...]] = ("mask",)
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, got {self.sparsity}")
        at_least("period", self.period, 1)

    @abstractmethod
    def renew(
        self,
        context: StepContext,
        center: Evaluation,
        probe: Probe,
        old: Tensors | None,
        count: int,
    ) -> Tensors:
        """Returns a mask with `count` entries set. `old` is None while the mask is full."""

    def fresh(self, p: Tensor) -> Tensor:
        return torch.ones_like(p, dtype=torch.bool)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        mask = context.recall("mask", self.fresh)
        if mask is not None:
            mask = [m.bool() for m in mask]  # a plain optimizer's checkpoint makes numbers of it
        if context.count > 0 and context.count % self.period == 0:
            if context.leader is None:
                count = round((1 - self.sparsity) * sum(p.numel() for p in context.params))
                mask = context.broadcast_from_first(self.renew(context, center, probe, mask, count))
            else:
                mask = context.leader.new_tensor_state["mask"]
            context.keep("mask", mask)
        scale = context.radius_over(context.grad_norm)
        if mask is None:
            return Offset(list(center.grads), scale)
        return Offset(tn.multiply_(tn.clone(center.grads), mask), scale)


@dataclass(frozen=True)
class DynamicMask(_Masked):
    r"""$e = \rho\,(g_0/\lVert g_0\rVert) \odot M$, $M$ dropped by $|g_0|$ and regrown at random.

    Each renewal keeps the live weights with the largest gradients and replaces the rest, a share
    that decays by a cosine over training, by others drawn at random.

    Args:
        rho: Length of the offset before masking.
        sparsity: Share of the weights that are not moved.
        period: Steps from one renewal to the next; the mask is full before the first.
        drop: Share of the live weights that a renewal replaces at first.
        total_steps: Steps over which that share decays to 0; None: it does not decay.
    """

    drop: float = 0.5
    total_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        share("drop", self.drop, zero=True)
        if self.total_steps is not None:
            at_least("total_steps", self.total_steps, 1)

    def renew(
        self,
        context: StepContext,
        center: Evaluation,
        probe: Probe,
        old: Tensors | None,
        count: int,
    ) -> Tensors:
        decay = 1.0
        if self.total_steps is not None:
            decay = (1 + math.cos(math.pi * min(context.count / self.total_steps, 1.0))) / 2
        regrown = math.floor(self.drop * decay * count)
        size: Tensors = [g.abs() for g in center.grads]
        if old is not None:
            size = [s.masked_fill(~live, -1.0) for s, live in zip(size, old)]
        kept = tn.top_mask(size, count - regrown)
        scores = [s.masked_fill(k, -1.0) for s, k in zip(context.draw(torch.rand), kept)]
        return [k | new for k, new in zip(kept, tn.top_mask(scores, regrown))]


@dataclass(frozen=True)
class FisherMask(_Masked):
    r"""$e = \rho\,(g_0/\lVert g_0\rVert) \odot M$, $M$ where the Fisher information is largest.

    The information is $\sum_i (\nabla \ell_i)^2$ over some samples of the batch, at $w$ and with
    the batch-norm statistics left alone. A renewal costs one forward and a backward a sample; it
    needs a `PerSample` closure.

    Args:
        rho: Length of the offset before masking.
        sparsity: Share of the weights that are not moved.
        period: Steps from one renewal to the next; the mask is full before the first.
        num_samples: How many samples of the batch the estimate uses.
    """

    num_samples: int = 16
    needs_samples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_samples", self.num_samples, 1)

    def renew(
        self,
        context: StepContext,
        center: Evaluation,
        probe: Probe,
        old: Tensors | None,
        count: int,
    ) -> Tensors:
        return tn.top_mask(probe.fisher(self.num_samples), count)
