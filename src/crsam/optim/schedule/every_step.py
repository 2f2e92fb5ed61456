"""The plain schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam.optim.schedule.base import Schedule


@dataclass(frozen=True)
class EveryStep(Schedule):
    """All passes at every step."""

    uses_center: ClassVar[bool] = False
