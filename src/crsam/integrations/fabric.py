"""Lightning Fabric: fp16 for optimizers that take closures."""

from __future__ import annotations

from functools import partial
from typing import Any

from crsam.integrations.window import take_step
from crsam.optim.optimizer import SharpnessAware


class SharpnessAwareSteps:
    """Lets fp16 (``16-mixed``) take a closure; all else works as it is.

    Where crsam is installed, every ``Fabric`` has it, by an entry point of Fabric's.
    """

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        precision = fabric.strategy.precision
        scaler = getattr(precision, "scaler", None)
        if scaler is not None and "optimizer_step" not in vars(precision):
            plain = precision.optimizer_step
            precision.optimizer_step = partial(_take_step, scaler, plain)


def _take_step(scaler: Any, plain: Any, optimizer: Any, **kwargs: Any) -> Any:
    if not isinstance(optimizer, SharpnessAware):
        return plain(optimizer, **kwargs)
    return take_step(optimizer, kwargs.get("closure"), scaler)[0]


def callbacks() -> list[SharpnessAwareSteps]:
    """What Fabric adds to every ``Fabric``."""
    return [SharpnessAwareSteps()]
