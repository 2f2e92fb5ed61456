"""The loss of each sample, and its slope along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam._batches import size_of as default_size_of
from crsam._stateless import Together, called
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.errors import UserError


def sample_losses(loss: MeanLoss, *offsets: Sequence[Tensor]) -> list[Tensor]:
    """The loss of every sample at ``w + offset``, for each offset: a forward pass for each.

    In float64 on the CPU. Batch by batch, so that a sample has its place whatever the order.
    """
    seen: list[list[Tensor]] = [[] for _ in offsets]
    for index, batch in enumerate(loss.batches):
        for losses, offset in zip(seen, offsets, strict=True):
            with torch.no_grad(), loss.moved(offset):
                term = loss.term(index, batch)
            losses.append(vector_of(term.losses, term.size).to("cpu", torch.float64))
    return [torch.cat(losses) for losses in seen]


def vector_of(losses: Tensor, size: int) -> Tensor:
    """The losses of `size` samples.

    Raises:
        UserError: If there is just one number for all of them.
    """
    if losses.numel() == 1 and size > 1:
        raise UserError(
            f"loss_fn must return the loss of each sample here, such as with reduction='none'; got "
            f"one number for {size}"
        )
    return losses.flatten()


class SlopesAlongWeights(nn.Module):
    r"""A loss function: $\langle w, \nabla\ell\rangle^2$ of each sample.

    $Jw$ is the derivative of $\langle J^T u, w\rangle$ by $u$: two backward passes. Forward mode
    would take one, but goes through what a loss has under ``torch.no_grad``.

    Args:
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample.
        size_of: The number of samples of a batch, if not the length of its first tensor.
    """

    def __init__(self, loss_fn: LossFn, size_of: SizeOf | None = None) -> None:
        super().__init__()
        self.loss_fn, self.size_of = loss_fn, size_of or default_size_of
        self._has_each = False

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        with torch.enable_grad():
            named = {
                f"model.{name}": p.detach().requires_grad_()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
            losses = called(Together(model, self.loss_fn), named, (batch,))
            self._has_each |= losses.numel() > 1
            if not (self._has_each and losses.ndim):
                vector_of(losses, self.size_of(batch))
            if not losses.requires_grad:
                return torch.zeros_like(losses)
            weights, u = list(named.values()), torch.zeros_like(losses, requires_grad=True)
            pulled = torch.autograd.grad(losses, weights, u, create_graph=True, allow_unused=True)
            parts = [(g * w.detach()).sum() for g, w in zip(pulled, weights) if g is not None]
            (slopes,) = torch.autograd.grad(parts, u)
        return slopes.square()
