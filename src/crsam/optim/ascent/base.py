"""The first of a method's three choices: where to probe."""

from __future__ import annotations

from abc import abstractmethod

from crsam.optim.part import Registered
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


class Ascent(Registered):
    """A rule for the offset ``e`` at which the objective looks."""

    def start(self, step: Step) -> Offset | None:
        """Where the step takes its first pass. None: at ``w``.

        Asked only if neither objective nor schedule needs the pass at ``w``. The answer is then
        ``step.start``, and `center` in the call below is what the probe saw there.
        """
        return None

    @abstractmethod
    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        """The offset from ``w``, given loss and gradient there.

        It must leave ``center.grads`` as they are; a new list of the same tensors may be the
        direction. After a first pass at ``step.start`` nobody else reads them, and it may overwrite
        them.
        """
