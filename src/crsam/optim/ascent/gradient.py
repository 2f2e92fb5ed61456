"""Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam.optim.ascent.base import Ascent
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class Gradient(Ascent):
    r"""Along the gradient: $e = \rho\, g_0 / \lVert g_0 \rVert$.

    Costs nothing beside the first pass.

    Args:
        rho: Length of the offset.
    """

    rho: float = 0.05
    hyper: ClassVar[tuple[str, ...]] = ("rho",)

    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        return Offset(list(center.grads), step.radius_over(step.grad_norm), step.grad_norm)
