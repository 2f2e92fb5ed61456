"""Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam._tensors import Tensors
from crsam.optim.objective.base import Objective
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class WorstCase(Objective):
    r"""The gradient at the probed point: $g_+ = \nabla L(w+e)$. One pass beside the first."""

    uses_center: ClassVar[bool] = False

    def __call__(self, step: Step, center: Evaluation, offset: Offset, probe: Probe) -> Tensors:
        return self.above(step, center, offset, probe).grads
