"""The Fisher–Rao norm."""

from __future__ import annotations

from typing import Any

from torch import nn

from crsam._batches import SizeOf
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.per_sample import SlopesAlongWeights


def fisher_rao(
    model: nn.Module, loss_fn: LossFn, batches: Any, *, size_of: SizeOf | None = None
) -> float:
    r"""$E[\langle w, \nabla\ell\rangle^2]$ over the samples: the square of the Fisher–Rao norm.

    Liang et al. 2019. The slopes of all samples' losses along the weights come out of one pass over
    the data, with two backward passes for each batch.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample of the batch, a vector.
        batches: A list of batches, a loader, or one batch.
        size_of: The number of samples of a batch. None: how many losses there are.

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
