"""The micro-batches of one step, where a framework hands them over one at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.optim.optimizer import SharpnessAware
from crsam.optim.replay import Replay

Run = Callable[[], Tensor | None]
"""Forward and backward of a micro-batch; returns its share of the loss, None to leave it out."""


class NothingToStep(Exception):
    """All micro-batches of a step were left out."""


class Window:
    """Gradient accumulation for methods that need several passes.

    Frameworks backpropagate micro-batches as they come and call ``step`` after the last one. The
    first pass of most methods is at the unmoved weights. It then uses the gradients that the
    earlier micro-batches left there. Every later pass runs all micro-batches again, each with its
    own random numbers. A method whose first pass is elsewhere runs all of them again in that pass
    too.

    Args:
        optimizer: Ours.
        no_sync: A context in which gradients are not sent to other processes.
    """

    def __init__(
        self,
        optimizer: SharpnessAware,
        no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._optimizer, self._no_sync = optimizer, no_sync
        self._params = [p for group in optimizer.param_groups for p in group["params"]]
        self._runs: list[tuple[Run, Replay]] = []
        self._losses: list[Tensor] = []

    def add(self, first: Run, again: Run | None = None) -> Tensor | None:
        """Runs a micro-batch that is not the last one of its step.

        Args:
            first: What is run now.
            again: What is run in later passes. Defaults to `first`.
        """
        if self._optimizer.starts_at_weights:
            return self._add(first, again or first)
        # The step will not use this gradient, and its first pass is to move the buffers.
        trial = Replay(self._params, self._optimizer.model, undoes=True)
        grads = [None if p.grad is None else p.grad.clone() for p in trial.others]
        with trial.one_pass():
            loss = self._add(first, again or first)
        trial.undo()
        for p, grad in zip(trial.others, grads, strict=True):
            p.grad = grad
        return loss

    def _add(self, first: Run, again: Run) -> Tensor | None:
        replay = Replay(self._params, None)
        with replay.one_pass():
            loss = first()
        if loss is not None:
            self._runs.append((again, replay))
            self._losses.append(loss.detach())
        return loss

    def closure(self, first: Run, again: Run | None = None) -> Callable[[], Tensor]:
        """For the step, which the last micro-batch takes: all passes over the whole window.

        Make it before the step is taken: a step starts without gradients, and those of the earlier
        micro-batches are kept from here.
        """
        kept = [p.grad for p in self._params]
        is_first = True

        def one_pass() -> Tensor:
            nonlocal is_first
            if not is_first:
                return self._again()
            is_first = False
            if self._optimizer.starts_at_weights:
                for p, grad in zip(self._params, kept, strict=True):
                    p.grad = grad
            else:
                self._losses = self._run_again(self._no_sync)
            self._add(first, again or first)
            if not self._losses:
                raise NothingToStep
            return _total(self._losses)

        return one_pass

    def _again(self) -> Tensor:
        return _total(self._run_again(nullcontext))

    def _run_again(self, last: Callable[[], AbstractContextManager[object]]) -> list[Tensor]:
        """Runs all micro-batches again, the last one of them within `last`."""
        losses = []
        for i, (run, replay) in enumerate(self._runs, start=1):
            with last() if i == len(self._runs) else self._no_sync(), replay.one_pass():
                loss = run()
            if loss is None:
                raise RuntimeError("a batch gave a loss in the first pass and none in a later one")
            losses.append(loss.detach())
        return losses


def _total(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).sum()


def take_step(
    optimizer: SharpnessAware,
    closure: Any,
    scaler: Any = None,
    before_base: Callable[[], object] = lambda: None,
) -> tuple[Tensor, bool]:
    """A step of ours, as a framework takes it.

    Args:
        optimizer: Ours.
        closure: What its step takes.
        scaler: The framework's ``GradScaler``, updated here; None: there is none.
        before_base: Called when the surrogate gradient is there and the weights will move.

    Returns:
        The loss, and whether the weights moved: a step with an overflow in any pass is skipped.
    """
    moved = False

    def hook(*_: Any) -> None:
        nonlocal moved
        moved = True
        before_base()

    step: Any = optimizer.step
    handle = optimizer.base.register_step_pre_hook(hook)
    try:
        loss = step(closure) if scaler is None else step(closure, scaler=scaler)
    finally:
        handle.remove()
    if scaler is not None:
        scaler.update()
    return loss, moved


def check_plain_closure(optimizer: SharpnessAware, instead: str) -> None:
    """Refuses methods that look at single samples, which a framework's batches do not show.

    Args:
        optimizer: Ours.
        instead: What the user can do.
    """
    for part in optimizer.parts:
        if part.needs_samples:
            raise UserError(
                f"{type(optimizer).__name__} ({type(part).__name__}) looks at single samples of "
                f"the batch: {instead}"
            )
