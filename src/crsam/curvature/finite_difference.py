"""Curvature as training sees it: a second difference along the gradient."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.ascent import Ball
from crsam.curvature.checks import check_positive, warn
from crsam.curvature.mean_loss import LossFn, MeanLoss


def finite_difference_curvature(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.1,
    size_of: SizeOf | None = None,
) -> float:
    r"""$\big(L(w + \rho v) + L(w - \rho v) - 2L(w)\big)/\rho^2$ along the gradient.

    With $v = \nabla L/\lVert\nabla L\rVert$: what a step of CR-SAM computes (the paper's Theorem
    1), on all the data. A mean of the curvature within `rho`; on a ReLU network, whose kinks carry
    curvature that no second derivative sees, that is not $v^\top\nabla^2 L\,v$.
    One forward and one backward pass over the data, and two forward passes. Rounding of the loss
    $L$ adds some $4\,\mathrm{eps}\,L/\rho^2$.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: How far to go.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

    Returns:
        The curvature; NaN, with a warning, where the gradient is 0.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss is not finite,
            or `rho` is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(1, 1, bias=False).double()
        >>> x = torch.tensor([[3.0]]).double()
        >>> bent = curvature.finite_difference_curvature(
        ...     model, lambda model, x: model(x).square().mean() / 2, [x]
        ... )
        >>> round(bent, 6)
        9.0
    """
    check_positive(rho=rho)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        at = loss.gradient()
        if tn.norm(at.grads) == 0:
            warn("the gradient is 0: there is no curvature along it")
            return math.nan
        offset = Ball(rho).farthest(at.grads)
        with loss.moved(offset):
            above = loss.value()
        with loss.moved(tn.scale_(offset, -1.0)):
            below = loss.value()
        return ((above - at.loss) + (below - at.loss)) / rho**2
