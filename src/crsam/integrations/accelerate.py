"""Accelerate: steps of several passes under ``accelerator.accumulate``, fp16 and DDP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from torch import Tensor, nn

from crsam.errors import UserError
from crsam.integrations.loggers import unwrapped
from crsam.integrations.window import Window, check_plain_closure, take_step


class PreparedOptimizer(AcceleratedOptimizer):
    """What ``accelerator.prepare`` makes of our optimizer, with a step that knows its closure."""

    _took = False

    def take(self, closure: Any, before_base: Callable[[], object] = lambda: None) -> Tensor:
        """Takes a step of our optimizer; Accelerate learns whether fp16 skipped it."""
        loss, moved = take_step(self.optimizer, closure, self.scaler, before_base)
        self._is_overflow, self._took = not moved, True
        return loss

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Without a closure, after `take`: nothing is left to do."""
        if closure is None and self._took:
            self._took = False
            return None
        if not self.gradient_state.sync_gradients or self.gradient_state.num_steps > 1:
            raise UserError(
                "a closure sees one micro-batch of those that accelerator.accumulate takes "
                "together: use crsam.integrations.accelerate.SharpnessAwareStep"
            )
        loss = self.take(closure)
        self._took = False
        return loss


def prepared(accelerator: Accelerator, optimizer: Any) -> PreparedOptimizer:
    """An optimizer that came out of ``accelerator.prepare``, with a step that knows its closure."""
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise UserError("the optimizer must come out of accelerator.prepare(model, optimizer)")
    ours = unwrapped(optimizer)
    kind = accelerator.distributed_type
    if kind not in (DistributedType.NO, *(k for k in DistributedType if k.startswith("MULTI_"))):
        raise UserError(
            f"{type(ours).__name__} cannot move the weights under Accelerate's {kind.value}: "
            "use data parallelism (DDP) or one device"
        )
    check_plain_closure(
        ours, "call its step in a loop of your own with crsam.PerSample(losses, num_samples)"
    )
    optimizer.__class__ = PreparedOptimizer  # the very object that accelerator and scheduler hold
    return optimizer


def window_of(accelerator: Accelerator, model: nn.Module, optimizer: PreparedOptimizer) -> Window:
    """For the micro-batches of one step; the optimizer learns how its model was wrapped."""
    ours = unwrapped(optimizer)
    if ours.model is None or ours.model is getattr(model, "module", None):
        ours.model = model
    return Window(ours, partial(accelerator.no_sync, model))


class SharpnessAwareStep:
    """A training step on a (micro-)batch, within ``accelerator.accumulate``.

    Takes the optimizer's step after the last micro-batch, with all of them in every pass. Do not
    call ``backward``, ``optimizer.step`` or ``zero_grad`` yourself; a scheduler as usual. Clip by
    the optimizer's ``max_norm=``.

    Args:
        accelerator: The one that prepared model and optimizer.
        model: As prepared.
        optimizer: As prepared; of ours.
        loss_fn: ``loss_fn(model, batch)`` returns the loss.

    Example:
        >>> import torch, crsam
        >>> from accelerate import Accelerator
        >>> from crsam.integrations.accelerate import SharpnessAwareStep
        >>> accelerator = Accelerator(cpu=True)
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = crsam.CRSAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        >>> model, opt = accelerator.prepare(model, opt)
        >>> step = SharpnessAwareStep(accelerator, model, opt, lambda m, x: m(x).square().mean())
        >>> with accelerator.accumulate(model):
        ...     loss = step(torch.ones(8, 4))
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Callable[[nn.Module, Any], Tensor],
    ) -> None:
        self.accelerator, self.model, self.loss_fn = accelerator, model, loss_fn
        self.optimizer = prepared(accelerator, optimizer)
        self._window = window_of(accelerator, model, self.optimizer)

    def __call__(self, batch: Any) -> Tensor:
        """Returns the loss of this batch in the step's first pass (see `SharpnessAware.step`).

        The first pass of R-SAM is not at the weights. For a micro-batch that is not the last one of
        its step, this is then the loss at the weights.
        """
        seen: list[Tensor] = []

        def run() -> Tensor:
            loss = self.loss_fn(self.model, batch)
            self.accelerator.backward(loss)
            seen.append(loss.detach())
            # As it was backpropagated: the losses of all micro-batches add up to that of the step.
            return loss / self.accelerator.gradient_accumulation_steps

        if not self.accelerator.sync_gradients:
            self._window.add(run)
        else:
            closure = self._window.closure(run)
            self._window = window_of(self.accelerator, self.model, self.optimizer)
            self.optimizer.take(closure)
            self.optimizer.optimizer.zero_grad()
        return seen[0]
