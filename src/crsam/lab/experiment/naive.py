"""SAM and CR-SAM as a first script of them is written: what our steps are timed beside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from crsam.lab.data.batches import Batch

RHO, ALPHA, BETA = 0.1, 0.1, 0.01


class NaiveStep:
    """One parameter after the other, one pass after the other, numbers read off the device.

    It is for the clock: batch norm sees every pass, and nothing guards the logarithms.

    Args:
        method: ``"sam"`` or ``"crsam"``.
        model: The model.
        base: The optimizer that descends.
        autocast: The dtype to compute in; None: the weights' own.
    """

    def __init__(
        self, method: str, model: nn.Module, base: Optimizer, autocast: torch.dtype | None = None
    ) -> None:
        self.model, self.base, self.autocast = model, base, autocast
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.follow: Callable[[Batch], float] = {"sam": self._sam, "crsam": self._crsam}[method]

    def __call__(self, batch: Batch) -> float:
        """Takes a step; the loss before it."""
        loss = self.follow(batch)
        self.base.step()
        return loss

    def _sam(self, batch: Batch) -> float:
        loss, offsets = self._ascend(batch)
        self._move(offsets, 1.0)
        self._gradient(batch)
        self._move(offsets, -1.0)
        return loss

    def _crsam(self, batch: Batch) -> float:
        loss, offsets = self._ascend(batch)
        here = self._gradients()
        self._move(offsets, 1.0)
        loss_plus = self._gradient(batch)
        ahead = self._gradients()
        self._move(offsets, -2.0)
        loss_minus = self._gradient(batch)
        self._move(offsets, 1.0)
        first, second = loss_plus - loss_minus, loss_plus + loss_minus - 2 * loss
        for p, g, g_plus in zip(self.params, here, ahead):
            assert p.grad is not None
            g_minus = p.grad
            bent = (g_plus + g_minus - 2 * g) * (ALPHA / second if second > 0 else 0.0)
            tilted = (g_plus - g_minus) * (BETA / first if first > 0 else 0.0)
            p.grad = g_plus + bent + tilted
        return loss

    def _ascend(self, batch: Batch) -> tuple[float, list[Tensor]]:
        """The loss, and the way up."""
        loss, grads = self._gradient(batch), self._gradients()
        norm = sum(g.norm().item() ** 2 for g in grads) ** 0.5
        return loss, [g * (RHO / (norm + 1e-12)) for g in grads]

    def _gradient(self, batch: Batch) -> float:
        self.base.zero_grad()
        kind = batch.inputs.device.type
        with torch.autocast(kind, self.autocast, enabled=self.autocast is not None):
            loss = F.cross_entropy(self.model(batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.params]

    @torch.no_grad()
    def _move(self, offsets: list[Tensor], times: float) -> None:
        for p, offset in zip(self.params, offsets):
            p.add_(offset, alpha=times)
