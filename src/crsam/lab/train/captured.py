"""One step on one batch as a CUDA graph: what `EagerStep` does, without its launches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from crsam.graph.captured import CannotCapture, Captured
from crsam.lab.data.batches import Batch
from crsam.lab.train.step import EagerStep, count_right
from crsam.optim.functional import Functional
from crsam.progress import say


class CapturedStep:
    """Calls the optimizer through a graph of its whole step.

    Args:
        model: On a CUDA device.
        optimizer: One that can be captured.
        autocast: The dtype to compute in, of weights kept in their own; None: theirs.
        parallel: See `Captured`.
        compile: Compile model, loss and the method's algebra first.
        share: Compile once for all steps that are given the same value; see `Functional`.
        channels_last: The memory order in which the model is given its inputs.
        tell: Say how long it took to be ready, and each way to run perturbed passes.
        otherwise: Takes all further steps where one turns out not to be capturable; one line says
            why. None: that is an error.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        autocast: torch.dtype | None = None,
        parallel: bool | Literal["auto"] = "auto",
        compile: bool = True,
        share: Hashable | None = None,
        channels_last: bool = False,
        tell: bool = False,
        otherwise: EagerStep | None = None,
    ) -> None:
        self.channels_last, self.tell, self.otherwise = channels_last, tell, otherwise
        self._gave_up = False
        self._functional = Functional(
            model, loss_function(autocast), autocast=autocast, compile=compile, share=share
        )
        self._captured = Captured(optimizer, self._functional, parallel, fuse=compile)
        self._batch: Batch | None = None
        self._began = time.perf_counter()

    @property
    def is_captured(self) -> bool:
        """Whether steps are replays of a graph by now."""
        return self._captured.is_ready and not self._gave_up

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Takes a step; the loss before it, and how many of the batch were right."""
        if not self._gave_up:
            try:
                return self._step(batch)
            except CannotCapture as reason:
                if self.otherwise is None:
                    raise
                say(f"steps are not captured in a CUDA graph: {reason}")
                self._gave_up = True
        assert self.otherwise is not None
        return self.otherwise(batch)

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self._batch is None:
            form = torch.channels_last if self.channels_last else torch.contiguous_format
            self._batch = Batch(batch.inputs.clone(memory_format=form), batch.targets.clone())
            self._functional.batch = self._batch
        else:
            for mine, new in zip(self._batch, batch):
                mine.copy_(new)
        loss = self._captured.step()
        if self.tell and self._captured.is_ready:
            self._say_ready()
        logits = self._functional.extra
        assert logits is not None
        return loss, count_right(logits, self._batch.targets)

    def _say_ready(self) -> None:
        self.tell = False
        seconds = time.perf_counter() - self._began
        ways = _by_way(self._captured.milliseconds)
        say(f"first steps, compiled and captured, took {seconds:.0f} s{ways}")


def _by_way(milliseconds: Mapping[str, float]) -> str:
    """What each way to run the perturbed passes takes.

    Example:
        >>> _by_way({"in sequence": 6.84, "at once": math.inf})
        '; perturbed passes in sequence: 6.84 ms a step; perturbed passes at once: failed'
    """
    return "".join(
        f"; perturbed passes {way}: " + ("failed" if math.isinf(each) else f"{each:.2f} ms a step")
        for way, each in milliseconds.items()
    )


def loss_function(
    autocast: torch.dtype | None,
) -> Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]:
    """The mean cross-entropy and the logits."""

    def loss_fn(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            logits = model(batch.inputs)
        logits = logits.to(batch.inputs.dtype)
        return F.cross_entropy(logits, batch.targets), logits

    return loss_fn
