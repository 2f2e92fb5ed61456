"""The third of a method's three choices: when to pay."""

from __future__ import annotations

from typing import ClassVar

from crsam._tensors import Tensors
from crsam.optim.closure import Selection
from crsam.optim.objective.base import Objective
from crsam.optim.part import Registered
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


class Schedule(Registered):
    """A rule for when the perturbed passes are taken, on which samples, and what follows else."""

    uses_center: ClassVar[bool] = True
    """Whether it needs the pass at ``w``: its gradient, the norm of that or the samples' losses."""

    def refuses(self, objective: Objective) -> str | None:
        """Why this schedule cannot go with this objective, if so."""
        return None

    def pays(self, step: Step) -> bool:
        """Whether this step takes the perturbed passes.

        Asked after the first pass; of steps that are captured before it, so that a schedule which
        stays on the device decides by ``step.count`` alone.
        """
        return True

    def part(
        self, step: Step, center: Evaluation, offset: Offset, probe: Probe
    ) -> Selection | None:
        """The samples that the objective looks at; None for the whole batch."""
        return None

    @property
    def reuses(self) -> bool:
        """Whether `paid` wants ``g0``: a copy of it is then kept while the objective works."""
        return False

    def paid(self, step: Step, g_0: Tensors, surrogate: Tensors) -> Tensors:
        """What to follow after the perturbed passes; `g_0` is empty unless the schedule reuses."""
        return surrogate

    def unpaid(self, step: Step, g_0: Tensors) -> Tensors:
        """What to follow without them."""
        return g_0
