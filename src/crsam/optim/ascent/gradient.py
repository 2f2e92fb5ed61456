"""The ascents of SAM and ASAM: along the gradient, in a plain and in an adaptive ball.

Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021.
Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from crsam import _tensors as tn
from crsam.optim.context import StepContext
from crsam.optim.part import Ascent
from crsam.optim.probe import Evaluation, Offset, Probe


@dataclass(frozen=True)
class Gradient(Ascent):
    r"""Along the gradient: $e = \rho\, g_0 / \lVert g_0 \rVert$.

    It costs nothing beside the first pass.

    Args:
        rho: Length of the offset.
    """

    rho: float = 0.05
    group_options: ClassVar[tuple[str, ...]] = ("rho",)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        norm = context.grad_norm
        return Offset(list(center.grads), context.radius_over(norm), norm)


@dataclass(frozen=True)
class Adaptive(Ascent):
    r"""In a ball that scales with the weights: $e = \rho\, T^2 g_0 / \lVert T g_0 \rVert$.

    $T = |w| + \eta$ for weights. $T = 1$ for biases and norm layers, which are the tensors of at
    most one dimension.

    Args:
        rho: Radius of the ball.
        eta: Keeps the ball open where a weight is 0.
    """

    rho: float = 0.5
    eta: float = 0.01
    group_options: ClassVar[tuple[str, ...]] = ("rho", "eta")

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        eta = context.option("eta")
        etas = eta if isinstance(eta, list) else [eta] * len(context.params)
        scales = [
            p.abs() + e if p.ndim > 1 else torch.ones_like(p) for p, e in zip(context.params, etas)
        ]
        direction = tn.multiply_(tn.clone(center.grads), scales)
        length = tn.norm(direction)
        return Offset(tn.multiply_(direction, scales), context.radius_over(length))
