"""Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.objective.base import Objective
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class SurrogateGap(Objective):
    r"""Also closes the gap $L(w+e) - L(w)$: $g_+ - \alpha\, g_\perp$. One pass beside the first.

    $g_\perp = g_0 - (\langle g_0, g_+\rangle/\lVert g_+\rVert^2)\, g_+$ is the part of the gradient
    that the step at $w+e$ does not see.

    Args:
        alpha: Weight of that part.
    """

    alpha: float = 0.4
    hyper: ClassVar[tuple[str, ...]] = ("alpha",)

    def __call__(self, step: Step, center: Evaluation, offset: Offset, probe: Probe) -> Tensors:
        g_0, g_plus = center.grads, self.above(step, center, offset, probe).grads
        inverse = tn.safe_reciprocal(tn.norm(g_plus))
        along = tn.dot(g_0, g_plus) * inverse * inverse  # the square itself may overflow
        g_perp = tn.add_(g_0, tn.scale_(tn.clone(g_plus), along), -1.0)
        return tn.add_(g_plus, tn.scale_(g_perp, step.hyper("alpha")), -1.0)
