"""The loss of each sample, and its slope along a direction."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from crsam._batches import size_of
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
    r"""A loss function: $\langle w, \nabla\ell\rangle^2$ of each sample, by forward mode.

    Args:
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample.
    """

    def __init__(self, loss_fn: LossFn) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        with forward_ad.dual_level():
            duals = {
                f"model.{name}": _dual(p.detach())
                for name, p in model.named_parameters()
                if p.requires_grad
            }
            out = called(Together(model, self.loss_fn), duals, (batch,))
            losses, slopes = forward_ad.unpack_dual(out)  # type: ignore[no-untyped-call]
            if losses.numel() == 1:
                vector_of(losses, size_of(batch))
            return torch.zeros_like(losses) if slopes is None else slopes.square()


def _dual(weights: Tensor) -> Tensor:
    """Weights that move in their own direction."""
    with warnings.catch_warnings():  # of torch about itself, as it loads its forward mode
        warnings.simplefilter("ignore", DeprecationWarning)
        return forward_ad.make_dual(weights, weights.clone())  # type: ignore[no-untyped-call]
