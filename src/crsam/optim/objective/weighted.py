"""Yue et al., "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization
Term", 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.objective.base import Objective
from crsam.optim.part import non_negative
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


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
    hyper: ClassVar[tuple[str, ...]] = ("gamma",)

    def check(self, name: str, value: Any) -> None:
        non_negative(name, value)
        if not value < 1:
            raise ValueError(f"{name} must be below 1, got {value}")

    def __call__(self, step: Step, center: Evaluation, offset: Offset, probe: Probe) -> Tensors:
        g_plus = self.above(step, center, offset, probe).grads
        weight = step.hyper("gamma", lambda gamma: gamma / (1 - gamma))
        if not self.decoupled:
            return tn.mix_(center.grads, g_plus, weight)
        step.direct = tn.scale_(tn.add_(g_plus, center.grads, -1.0), weight)
        return center.grads
