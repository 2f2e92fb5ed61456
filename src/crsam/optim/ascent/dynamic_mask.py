"""Mi et al., "Make Sharpness-Aware Minimization Stronger: A Sparsified Approach", 2022: SSAM-D."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.ascent.masked import _Masked
from crsam.optim.part import at_least, share
from crsam.optim.probe import Evaluation, Probe
from crsam.optim.step import Step


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
        self, step: Step, center: Evaluation, probe: Probe, old: Tensors | None, count: int
    ) -> Tensors:
        decay = 1.0
        if self.total_steps is not None:
            decay = (1 + math.cos(math.pi * min(step.count / self.total_steps, 1.0))) / 2
        regrown = math.floor(self.drop * decay * count)
        size: Tensors = [g.abs() for g in center.grads]
        if old is not None:
            size = [s.masked_fill(~live, -1.0) for s, live in zip(size, old)]
        kept = tn.top_mask(size, count - regrown)
        scores = [s.masked_fill(k, -1.0) for s, k in zip(step.draw(torch.rand), kept)]
        return [k | new for k, new in zip(kept, tn.top_mask(scores, regrown))]
