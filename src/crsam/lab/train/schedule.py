"""The learning rate, as a pure function of how far training has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from crsam.errors import UserError, unknown

_NAMES = ("cosine", "step", "constant")


@dataclass(frozen=True)
class Schedule:
    """What the base learning rate is multiplied by.

    Raises:
        UserError: For a value that is not allowed.

    Example:
        >>> Schedule(warmup=5).factor(epoch=2.5, epochs=200)
        0.5
    """

    name: Literal["cosine", "step", "constant"] = "cosine"
    """Half a cosine down to `final`; drops by `gamma` at each milestone; or no change."""
    warmup: float = 0.0
    """Epochs over which the rate rises from 0; the cosine runs over the rest."""
    milestones: tuple[float, ...] = ()
    """Epochs, or, below 1, shares of all epochs, at which ``step`` drops the rate."""
    gamma: float = 0.1
    """The factor of each drop."""
    final: float = 0.0
    """Where the cosine ends, as a share of the base rate."""

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise unknown("schedule", self.name, _NAMES)
        for name in ("warmup", "gamma", "final"):
            _check(name, getattr(self, name))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        for milestone in self.milestones:
            _check("milestones", milestone)
        if self.name == "step" and not self.milestones:
            raise UserError("schedule.milestones must name the epochs at which the rate drops")

    def factor(self, epoch: float, epochs: float) -> float:
        """The factor after `epoch` of `epochs`; between two epochs too."""
        if epoch < self.warmup:
            return epoch / self.warmup
        if self.name == "step":
            at = [m * epochs if m < 1 else m for m in self.milestones]
            return self.gamma ** sum(epoch >= m for m in at)
        if self.name == "cosine":
            share = (epoch - self.warmup) / max(epochs - self.warmup, 1e-9)
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return 1.0


def _check(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value < math.inf):
        raise UserError(f"schedule.{name} must be a number of at least 0, got {value!r}")
