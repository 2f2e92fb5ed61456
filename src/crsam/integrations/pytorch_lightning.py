"""Lightning, as ``pytorch_lightning``: return our optimizer from ``configure_optimizers``."""

from __future__ import annotations

from pytorch_lightning import Callback

from crsam.integrations._lightning_steps import Steps


class SharpnessAwareSteps(Steps, Callback):
    """As `crsam.integrations.lightning.SharpnessAwareSteps`, for the package of this name."""


def callbacks() -> list[Callback]:
    """What Lightning adds to every Trainer."""
    return [SharpnessAwareSteps()]
