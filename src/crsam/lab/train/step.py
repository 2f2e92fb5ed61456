"""One optimizer step on one batch, whatever the optimizer: the loss as a closure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from crsam.lab.data.batches import Batch
from crsam.optim.closures import PerSample


class EagerStep:
    """Calls the optimizer with a closure over the batch.

    Args:
        model: As wrapped for several processes.
        optimizer: Of torch or ours.
        autocast: The dtype to compute in, of weights kept in their own; None: theirs.
        accumulate: Micro-batches that a batch is cut into; their mean is what is descended.
        after_backward: Called when the gradient of the whole batch is there.
        by_sample: Give the optimizer a `PerSample` closure.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        autocast: torch.dtype | None = None,
        accumulate: int = 1,
        after_backward: Callable[[], object] | None = None,
        by_sample: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.autocast, self.accumulate = autocast, accumulate
        self.after_backward = after_backward
        self.by_sample = by_sample

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Takes a step; the loss before it, and how many of the batch were right."""
        num_right: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            total, right = [], []
            parts = batch.chunks(self.accumulate)
            for i, part in enumerate(parts, start=1):
                with self._last(i == len(parts)):
                    logits, losses = self._forward(part)
                    loss = losses.mean() / len(parts)
                    loss.backward()  # type: ignore[no-untyped-call]
                total.append(loss.detach())
                right.append(count_right(logits, part.targets))
            if self.after_backward is not None:
                self.after_backward()
            num_right.append(torch.stack(right).sum())
            return torch.stack(total).sum()

        def losses_of(part: Tensor | slice) -> Tensor:
            some = Batch(batch.inputs[part], batch.targets[part])
            logits, losses = self._forward(some)
            num_right.append(count_right(logits, some.targets))
            return losses

        if self.by_sample:
            sampled = PerSample(losses_of, len(batch.inputs))
            loss = self.optimizer.step(sampled)  # type: ignore[arg-type]
        else:
            loss = self.optimizer.step(closure)  # type: ignore[arg-type]
        return torch.as_tensor(loss).detach(), num_right[0]

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits, and the loss of each sample, in the weights' own precision."""
        kind = batch.inputs.device.type
        with torch.autocast(kind, self.autocast, enabled=self.autocast is not None):
            logits = self.model(batch.inputs)
        logits = logits.to(batch.inputs.dtype)
        return logits, F.cross_entropy(logits, batch.targets, reduction="none")

    def _last(self, last: bool) -> AbstractContextManager[object]:
        """Gradients travel between processes once, with the last micro-batch."""
        if last or not isinstance(self.model, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


def count_right(logits: Tensor, targets: Tensor) -> Tensor:
    """How many predictions are right; of mixed targets, the likelier class counts."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.detach().argmax(1) == labels).sum()
