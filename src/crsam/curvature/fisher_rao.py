"""The Fisher–Rao norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam._batches import size_of as default_size_of
from crsam._stateless import loss_with_tensors
from crsam.curvature.mean_loss import LossFn, MeanLoss, checked_sample_losses


def fisher_rao(
    model: nn.Module, loss_fn: LossFn, batches: Any, *, size_of: SizeOf | None = None
) -> float:
    r"""$E[\langle w, \nabla\ell\rangle^2]$ over the samples: the square of the Fisher–Rao norm.

    Liang et al. 2019. One pass over the data gives the slopes of all samples' losses along the
    weights, with two backward passes for each batch.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample of the batch, a vector.
        batches: A list of batches, a loader, or one batch.
        size_of: The number of samples of a batch. By default this is the number of losses.

    Returns:
        The square of the norm.

    Raises:
        UserError: If `loss_fn` does not return the loss of each sample, there are no batches, no
            parameter requires a gradient, or a loss is not finite.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
        >>> curvature.fisher_rao(model, lambda model, x: model(x)[:, 0], [x])  # (7² + 1²)/2
        25.0
    """
    with MeanLoss(model, SlopesAlongWeights(loss_fn, size_of), batches, size_of) as slopes:
        return slopes.value()


class SlopesAlongWeights(nn.Module):
    r"""A loss function that returns $\langle w, \nabla\ell\rangle^2$ of each sample.

    $Jw$ is the derivative of $\langle J^T u, w\rangle$ by $u$, which takes two backward passes.
    Forward mode would take one, but it also differentiates what a loss computes under
    ``torch.no_grad``.

    Args:
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample.
        size_of: The number of samples of a batch. By default this is the length of its first
            tensor.
    """

    def __init__(self, loss_fn: LossFn, size_of: SizeOf | None = None) -> None:
        super().__init__()
        self.loss_fn, self.size_of = loss_fn, size_of or default_size_of
        self._has_sample_losses = False

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        with torch.enable_grad():
            named = {
                name: p.detach().requires_grad_()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
            losses: Tensor = loss_with_tensors(model, self.loss_fn, named, batch)
            self._has_sample_losses |= losses.numel() > 1
            if not (self._has_sample_losses and losses.ndim):
                checked_sample_losses(losses, self.size_of(batch))
            if not losses.requires_grad:
                return torch.zeros_like(losses)
            weights, u = list(named.values()), torch.zeros_like(losses, requires_grad=True)
            pulled = torch.autograd.grad(losses, weights, u, create_graph=True, allow_unused=True)
            parts = [(g * w.detach()).sum() for g, w in zip(pulled, weights) if g is not None]
            (slopes,) = torch.autograd.grad(parts, u)
        return slopes.square()
