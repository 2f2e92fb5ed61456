"""The norm of the gradient."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.checks import check_one_of
from crsam.curvature.mean_loss import LossFn, MeanLoss

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
        model: The model, in the mode it is to be measured in; left as found.
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
