"""Lightning, as ``lightning.pytorch``: return our optimizer from ``configure_optimizers``."""

from __future__ import annotations

from lightning.pytorch import Callback

from crsam.integrations._lightning_steps import Steps


class SharpnessAwareSteps(Steps, Callback):
    """Makes automatic optimisation right for methods that need several passes a step.

    Where crsam is installed, every Trainer has it (by an entry point of Lightning's), and it does
    nothing unless the optimizer is one of ours. Then

    - what ``training_step`` logs, returns and adds to metrics is the first pass's;
    - ``accumulate_grad_batches`` gives all passes the same micro-batches and random numbers;
    - gradient clipping and ``on_before_optimizer_step`` see the gradient that is followed;
    - fp16 (``16-mixed``) works, and a step with an overflow in any pass is skipped;
    - ``model=`` is the LightningModule, unless you gave one.
    """


def callbacks() -> list[Callback]:
    """What Lightning adds to every Trainer."""
    return [SharpnessAwareSteps()]
