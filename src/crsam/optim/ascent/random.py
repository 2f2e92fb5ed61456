"""Liu et al., "Random Sharpness-Aware Minimization", 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crsam import _sharded
from crsam import _tensors as tn
from crsam.optim.ascent.base import Ascent
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class Random(Ascent):
    r"""From a random point: $e = \rho\,(\delta_0 + \lambda g)/\lVert \delta_0 + \lambda g \rVert$.

    $\delta_0 \sim N(0, \sigma^2)$ times the norm of the weight's filter, and $g$ the gradient at
    $w + \delta_0$: one pass more than the gradient ascent, since the first pass, at $w$, gives the
    loss, the batch-norm statistics and what any objective may need. No public code was found; this
    is our reading of the paper, and we are about 65 % sure of it.

    Args:
        rho: Length of the offset.
        sigma: Of the random start, relative to the filters' norms.
        lam: Weight of the gradient against the random start.
    """

    rho: float = 0.05
    sigma: float = 0.01
    lam: float = 1.0
    hyper: ClassVar[tuple[str, ...]] = ("rho", "sigma", "lam")

    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        start = tn.multiply_(step.draw(torch.randn), [_filter_norms(p) for p in step.params])
        tn.scale_(start, step.hyper("sigma"))
        direction = tn.scale_(probe(Offset(start, 1.0)).grads, step.hyper("lam"))
        tn.add_(direction, start)
        return Offset(direction, step.radius_over(tn.norm(direction)))


def _filter_norms(weight: Tensor) -> Tensor:
    """The norm of each ``weight[i]``, or of the whole where it has at most one dimension."""
    dims = tuple(range(1, weight.ndim)) if weight.ndim > 1 else None
    norms = torch.linalg.vector_norm(weight, dim=dims, keepdim=True)
    return _sharded.spread_along(weight, norms)
