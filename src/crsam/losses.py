"""SAF and MESA: sharpness-aware training as a loss, with a plain optimizer.

Du et al., "Sharpness-Aware Training for Free", 2022. Both are modules that hold their own state:
save and load it with ``state_dict`` as you do the model's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam.optim.part import at_least, non_negative, share

Criterion = Callable[[Tensor, Tensor], Tensor]


class _Trajectory(nn.Module):
    r"""A loss plus $\lambda\tau^2 KL(\mathrm{softmax}(z'/\tau) \Vert \mathrm{softmax}(z/\tau))$."""

    def __init__(self, lam: float, tau: float, start: int, criterion: Criterion) -> None:
        super().__init__()
        non_negative("lam", lam)
        non_negative("tau", tau)
        if tau == 0:
            raise ValueError("tau must be above 0")
        at_least("start", start, 0)
        self.lam, self.tau, self.start, self.criterion = lam, tau, start, criterion
        self.epoch = 0

    def next_epoch(self) -> None:
        """To be called after each epoch."""
        self.epoch += 1

    def distances(self, logits: Tensor, past: Tensor) -> Tensor:
        """The second term, for each sample."""
        log_now = F.log_softmax(logits / self.tau, dim=-1)
        log_past = F.log_softmax(past.to(logits.dtype) / self.tau, dim=-1)
        kl = F.kl_div(log_now, log_past, log_target=True, reduction="none").sum(-1)
        return self.lam * self.tau**2 * kl

    def get_extra_state(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def set_extra_state(self, state: Any) -> None:
        self.epoch = state["epoch"]


class SAF(_Trajectory):
    r"""Holds each sample's logits close to its own of `lag` epochs ago. No pass beside the first.

    $\ell(z, y) + \lambda\tau^2 KL(\mathrm{softmax}(z_{old}/\tau) \Vert \mathrm{softmax}(z/\tau))$
    from epoch `start` on; samples that were not seen `lag` epochs ago have the plain loss only.
    Keeps ``(lag + 1) × num_samples × num_classes`` numbers. Under data parallelism a rank knows
    only the samples it has seen: use a sampler that gives it the same ones in every epoch.

    Args:
        num_samples: Size of the training set.
        num_classes: Number of logits.
        lam: Weight $\lambda$ of the second term.
        tau: Temperature.
        lag: How many epochs old the logits are that it compares with.
        start: The first epoch, counted from 0, with the second term; at least `lag`.
        criterion: ``criterion(logits, targets)``, the plain loss.

    Example:
        >>> import torch, crsam
        >>> criterion = crsam.SAF(num_samples=100, num_classes=3)
        >>> logits, targets = torch.randn(8, 3), torch.randint(3, (8,))
        >>> indices = torch.arange(8)  # which samples of the training set these are
        >>> loss = criterion(logits, targets, indices)
        >>> criterion.next_epoch()
    """

    history: Tensor
    epochs: Tensor

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        lam: float = 0.3,
        tau: float = 5.0,
        lag: int = 3,
        start: int = 5,
        criterion: Criterion = F.cross_entropy,
    ) -> None:
        super().__init__(lam, tau, start, criterion)
        at_least("num_samples", num_samples, 1)
        at_least("num_classes", num_classes, 1)
        at_least("lag", lag, 1)
        at_least("start", start, lag)
        self.lag = lag
        self.register_buffer("history", torch.zeros(lag + 1, num_samples, num_classes))
        self.register_buffer("epochs", torch.full((lag + 1, num_samples), -1))

    def forward(self, logits: Tensor, targets: Tensor, indices: Tensor) -> Tensor:
        """The loss; in training mode it also remembers the logits of these samples."""
        loss = self.criterion(logits, targets)
        if self.epoch >= self.start:
            slot = (self.epoch - self.lag) % len(self.history)
            known = self.epochs[slot, indices] == self.epoch - self.lag
            loss = loss + (known * self.distances(logits, self.history[slot, indices])).mean()
        if self.training:
            slot = self.epoch % len(self.history)
            self.history[slot, indices] = logits.detach().to(self.history.dtype)
            self.epochs[slot, indices] = self.epoch
        return loss


class MESA(_Trajectory):
    r"""Holds the logits close to those of an exponential mean of the weights. One forward more.

    $\ell(z, y) + \lambda\tau^2 KL(\mathrm{softmax}(z_{ema}/\tau) \Vert \mathrm{softmax}(z/\tau))$
    from epoch `start` on. Buffers of the mean model (batch-norm statistics) are copies of the
    model's, taken at each `update`.

    Args:
        model: The model in training; the mean starts as a copy of it.
        lam: Weight $\lambda$ of the second term.
        tau: Temperature.
        decay: Of the mean.
        start: The first epoch, counted from 0, with the second term.
        criterion: ``criterion(logits, targets)``, the plain loss.

    Example:
        >>> import torch, crsam
        >>> model = torch.nn.Linear(4, 3)
        >>> criterion = crsam.MESA(model)
        >>> inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))
        >>> loss = criterion(model(inputs), targets, inputs)
        >>> criterion.update(model)  # after each step of the optimizer
        >>> criterion.next_epoch()
    """

    def __init__(
        self,
        model: nn.Module,
        lam: float = 0.3,
        tau: float = 5.0,
        decay: float = 0.9998,
        start: int = 5,
        criterion: Criterion = F.cross_entropy,
    ) -> None:
        super().__init__(lam, tau, start, criterion)
        share("decay", decay, zero=True)
        self.decay = decay
        self.mean_model = copy.deepcopy(model).requires_grad_(False)

    def forward(self, logits: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
        """The loss; `inputs` are those that gave `logits`."""
        loss = self.criterion(logits, targets)
        if self.epoch >= self.start:
            with torch.no_grad():
                past = self.mean_model(inputs)
            loss = loss + self.distances(logits, past).mean()
        return loss

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the mean towards the weights of `model`: to be called after each optimizer step."""
        for mean, p in zip(self.mean_model.parameters(), model.parameters(), strict=True):
            mean.lerp_(p, 1 - self.decay)
        for kept, buffer in zip(self.mean_model.buffers(), model.buffers(), strict=True):
            kept.copy_(buffer)
