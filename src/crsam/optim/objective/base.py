"""The second of a method's three choices: what to follow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import ClassVar

from crsam._tensors import Tensors
from crsam.optim.part import Registered
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


class Objective(Registered):
    """A rule for the surrogate gradient that the base optimizer is given."""

    uses_center: ClassVar[bool] = True
    """Whether it needs the pass at ``w``. If so, and only part of the batch is looked at, the
    gradient at ``w`` is taken anew on that part, so that all its gradients are of one loss. If not,
    ``center.grads`` is empty, and the ascent may take the first pass elsewhere (`Ascent.start`)."""

    @abstractmethod
    def __call__(self, step: Step, center: Evaluation, offset: Offset, probe: Probe) -> Tensors:
        """The surrogate gradient.

        ``center.grads`` (empty unless `uses_center`) and the tensors of `offset` may be overwritten
        once the last probe that needs them is done.
        """

    def plan(self, step: Step) -> Hashable:
        """Which kind of step this is, where there are several: each is captured on its own."""
        return None

    @classmethod
    def above(
        cls, step: Step, center: Evaluation, offset: Offset, probe: Probe, last: bool = True
    ) -> Evaluation:
        """The probe at ``w + e``, with its loss and the sharpness put into the report."""
        return cls.tell(step, center, probe(offset, last=last))

    @staticmethod
    def tell(step: Step, center: Evaluation, plus: Evaluation) -> Evaluation:
        """Puts the loss at ``w + e`` and the sharpness into the report.

        Without a pass at ``w`` there is no sharpness to report.
        """
        step.report["loss_plus"] = plus.loss
        if step.start is None:
            step.report["sharpness"] = plus.loss - center.loss
        return plus
