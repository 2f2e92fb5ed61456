"""The gradient's norm, the curvature along the gradient, and products with the Hessian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam._tensors import Tensors
from crsam.curvature.ascent import Ball
from crsam.curvature.checks import check_one_of, check_positive, warn
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.errors import UserError

NormOf = Literal["data", "batches"]
"""Whose gradient: that of the mean loss over all data, or that of each batch."""


def gradient_norm(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    of: NormOf = "data",
    size_of: SizeOf | None = None,
) -> float:
    r"""$\lVert\nabla L(w)\rVert_2$ of the mean loss over all data, or the mean over the batches.

    There are two figures of this name:

    - ``of="data"`` is $\lVert\nabla L\rVert_2$, the norm of the gradient of the mean loss over all
      samples. It does not depend on how the data is cut into batches.
    - ``of="batches"`` is $\frac{1}{B}\sum_b \lVert\nabla L_b\rVert_2$. This is what the code of the
      CR-SAM authors computes. Every batch counts once, also a smaller last one. The figure grows
      as the batches get smaller, and it does not vanish at a minimum. The authors use batches of
      128.

    Both cost one forward and one backward pass over the data.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        of: ``"data"`` for the norm of the full gradient, ``"batches"`` for the plain mean of the
            norms of the batches' gradients.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The norm.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss is not
            finite, or `of` is neither of the two.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> batches = [torch.tensor([[3.0, 4.0]]), -torch.tensor([[3.0, 4.0], [3.0, 4.0]])]
        >>> loss_fn = lambda model, x: model(x).mean()
        >>> round(curvature.gradient_norm(model, loss_fn, batches), 4)
        1.6667
        >>> curvature.gradient_norm(model, loss_fn, batches, of="batches")
        5.0
    """
    check_one_of(("data", "batches"), of=of)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        at = loss.gradient()
        return tn.norm(at.grads).item() if of == "data" else at.batch_norm


def finite_difference_curvature(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.1,
    size_of: SizeOf | None = None,
) -> float:
    r"""$\big(L(w + \rho v) + L(w - \rho v) - 2L(w)\big)/\rho^2$ along the gradient.

    The direction is $v = \nabla L/\lVert\nabla L\rVert$. A step of CR-SAM computes the same figure
    for one batch (the paper's Theorem 1). It is a mean of the curvature within `rho`. On a ReLU
    network it is not $v^\top\nabla^2 L\,v$: the kinks of the loss have curvature that no second
    derivative sees. The cost is one forward and one backward pass over the data, and two forward
    passes. Rounding of the loss $L$ adds about $4\,\mathrm{eps}\,L/\rho^2$.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: The distance to both sides.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The curvature. Where the gradient is 0 it is NaN, and there is a warning.

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
        offset = Ball(rho).highest_point(at.grads)
        with loss.perturbed_weights(offset):
            above = loss.value()
        with loss.perturbed_weights(tn.scale_(offset, -1.0)):
            below = loss.value()
        return ((above - at.loss) + (below - at.loss)) / rho**2


def hessian_vector_product(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    vector: Sequence[Tensor],
    *,
    size_of: SizeOf | None = None,
) -> Tensors:
    r"""$\nabla^2 L(w)\,v$ of the mean loss over all batches.

    The cost is one gradient with its graph and one product for each batch.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        vector: A tensor for each parameter that requires a gradient, of the same shape.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The product, a tensor for each parameter that requires a gradient.

    Raises:
        UserError: If `vector` has other shapes, there are no batches, no parameter requires a
            gradient, or a loss or second derivative is not finite.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> curvature.hessian_vector_product(
        ...     model, lambda model, x: model(x).square().mean(), [x], [torch.ones(1, 2)]
        ... )
        [tensor([[1., 9.]])]
    """
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        shapes = [tuple(p.shape) for p in loss.params]
        if [tuple(v.shape) for v in vector] != shapes:
            raise UserError(
                f"vector must have a tensor for each parameter that requires a gradient, of shapes "
                f"{shapes}; got {[tuple(v.shape) for v in vector]}"
            )
        product = loss.hessian_product(loss.flatten(vector).to(loss.device))
        return tn.clone(loss.unflatten(product))
