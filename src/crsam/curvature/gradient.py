"""The norm of the gradient."""

from __future__ import annotations

from typing import Any

from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.mean_loss import LossFn, MeanLoss


def gradient_norm(
    model: nn.Module, loss_fn: LossFn, batches: Any, *, size_of: SizeOf | None = None
) -> float:
    r"""$\lVert\nabla L(w)\rVert_2$ of the mean loss over all batches.

    That of the full mean gradient, not the mean of the batches' norms, which is larger and does
    not vanish at a minimum. One forward and one backward pass over the data.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

    Returns:
        The norm.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, or a loss is not
            finite.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> torch.nn.init.ones_(model.weight).requires_grad
        True
        >>> batches = [torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.0], [3.0, 4.0]])]
        >>> curvature.gradient_norm(model, lambda model, x: model(x).mean(), batches)
        5.0
    """
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        return tn.norm(loss.gradient().grads).item()
