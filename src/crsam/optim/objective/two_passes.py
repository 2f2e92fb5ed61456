"""Objectives of two passes: the worst case, and what adds a gradient at ``w`` to it.

Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021.
Zhao et al., "Penalizing Gradient Norm for Efficiently Improving Generalization", 2022.
Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", 2022.
Yue et al., "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term",
2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.context import StepContext
from crsam.optim.part import Objective, non_negative
from crsam.optim.probe import Evaluation


@dataclass(frozen=True)
class WorstCase(Objective):
    r"""The gradient at the probed point: $g_+ = \nabla L(w+e)$. One pass beside the first."""

    needs_center: ClassVar[bool] = False

    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        return values[0].grads


@dataclass(frozen=True)
class GradientNorm(Objective):
    r"""Loss plus $\lambda \lVert\nabla L\rVert$.

    $(1-\alpha)\,g_0 + \alpha\,g_+$ with $\alpha = \lambda/\rho$. One pass beside the first.

    Args:
        alpha: The balance; 1 is the worst case alone.
    """

    alpha: float = 0.8
    group_options: ClassVar[tuple[str, ...]] = ("alpha",)

    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        g_plus = values[0].grads
        return tn.mix_(center.grads, g_plus, context.option("alpha"))


@dataclass(frozen=True)
class SurrogateGap(Objective):
    r"""Also closes the gap $L(w+e) - L(w)$: $g_+ - \alpha\, g_\perp$. One pass beside the first.

    $g_\perp = g_0 - (\langle g_0, g_+\rangle/\lVert g_+\rVert^2)\, g_+$ is the part of the gradient
    that the step at $w+e$ does not see.

    Args:
        alpha: Weight of that part.
    """

    alpha: float = 0.4
    group_options: ClassVar[tuple[str, ...]] = ("alpha",)

    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        g_0, g_plus = center.grads, values[0].grads
        inverse = tn.safe_reciprocal(tn.norm(g_plus))
        along = tn.dot(g_0, g_plus) * inverse * inverse  # the square itself may overflow
        g_perp = tn.add_(g_0, tn.scale_(tn.clone(g_plus), along), -1.0)
        return tn.add_(g_plus, tn.scale_(g_perp, context.option("alpha")), -1.0)


@dataclass(frozen=True)
class Weighted(Objective):
    r"""Loss plus weighted sharpness: $(1-a)\,g_0 + a\,g_+$, $a = \gamma/(1-\gamma)$.

    One pass beside the first. Decoupled, the base optimizer steps with $g_0$ alone and the weights
    then move by $-\eta\, a\,(g_+ - g_0)$, as decoupled weight decay does ($\eta$: learning rate).

    Args:
        gamma: 0 is the base optimizer, 1/2 is SAM.
        decoupled: Keep the sharpness out of the base optimizer's momentum and moments.
    """

    gamma: float = 0.9
    decoupled: bool = False
    group_options: ClassVar[tuple[str, ...]] = ("gamma",)

    def check(self, name: str, value: Any) -> None:
        non_negative(name, value)
        if not value < 1:
            raise ValueError(f"{name} must be below 1, got {value}")

    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        g_plus = values[0].grads
        weight = context.option("gamma", lambda gamma: gamma / (1 - gamma))
        if not self.decoupled:
            return tn.mix_(center.grads, g_plus, weight)
        context.direct_move = tn.scale_(tn.add_(g_plus, center.grads, -1.0), weight)
        return center.grads
