"""Zhao et al., "Penalizing Gradient Norm for Efficiently Improving Generalization", 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.objective.base import Objective
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class GradientNorm(Objective):
    r"""Loss plus $\lambda \lVert\nabla L\rVert$.

    $(1-\alpha)\,g_0 + \alpha\,g_+$ with $\alpha = \lambda/\rho$. One pass beside the first.

    Args:
        alpha: The balance; 1 is the worst case alone.
    """

    alpha: float = 0.8
    hyper: ClassVar[tuple[str, ...]] = ("alpha",)

    def __call__(self, step: Step, center: Evaluation, offset: Offset, probe: Probe) -> Tensors:
        g_plus = self.above(step, center, offset, probe).grads
        return tn.mix_(center.grads, g_plus, step.hyper("alpha"))
