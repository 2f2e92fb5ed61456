"""Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization", 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from crsam import _tensors as tn
from crsam.optim.ascent.base import Ascent
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class Adaptive(Ascent):
    r"""In a ball that scales with the weights: $e = \rho\, T^2 g_0 / \lVert T g_0 \rVert$.

    $T = |w| + \eta$ for weights, 1 for biases and norm layers (tensors of at most one dimension).

    Args:
        rho: Radius of the ball.
        eta: Keeps the ball open where a weight is 0.
    """

    rho: float = 0.5
    eta: float = 0.01
    hyper: ClassVar[tuple[str, ...]] = ("rho", "eta")

    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        eta = step.hyper("eta")
        etas = eta if isinstance(eta, list) else [eta] * len(step.params)
        scales = [
            p.abs() + e if p.ndim > 1 else torch.ones_like(p) for p, e in zip(step.params, etas)
        ]
        direction = tn.multiply_(tn.clone(center.grads), scales)
        length = tn.norm(direction)
        return Offset(tn.multiply_(direction, scales), step.radius_over(length))
