"""How much of the sharpness a single step of ascent finds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.curvature.ascent import Ball, climb
from crsam.curvature.checks import check_count, check_positive
from crsam.curvature.estimate import Estimate
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.per_sample import sample_losses


class Ratio(NamedTuple):
    """The approximation ratio, in two ways."""

    mean: float
    """The mean of the samples' ratios; NaN where all were left out."""
    stderr: float
    """Its standard error over the samples; NaN for less than two."""
    of_means: float
    """The mean rise by one step, by the mean rise by many: no sample is left out of it."""
    left_out: int
    """Samples whose loss the many steps do not raise by more than the floor."""
    num_samples: int


def approximation_ratio(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.1,
    steps: int = 20,
    floor: float = 0.01,
    per_batch: bool = False,
    size_of: SizeOf | None = None,
) -> Ratio:
    r"""$E\big[(\ell(w+\delta) - \ell(w))/(\ell(w+\delta^*) - \ell(w))\big]$, the paper's eq. 2.

    $\delta$ is the one-step ascent of the mean loss and $\delta^*$ that of `steps` projected steps
    in the same ball, the best point on the way; the quotient is taken for each sample. 1 where the
    loss is linear. A mean of quotients hangs on the samples whose loss $\delta^*$ hardly raises:
    those below `floor` are left out and counted, but the value still depends on it. The quotient
    of the means, beside it, does not. `steps` forward and backward passes over the data, and five
    forward passes.

    The paper does not say whose ascent $\delta$ is. All batches have one together here; with
    `per_batch` each has its own, as in training, and with batches of one sample, each sample.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample of the batch, a vector.
        batches: A list of batches, a loader, or one batch; the paper takes 5,000 training samples.
        rho: Radius of the ball.
        steps: Of the ascent to $\delta^*$.
        floor: How much a sample's loss must rise to count, as a share of the mean rise.
        per_batch: Whether each batch has its own ascents.
        size_of: The number of samples of a batch. None: how many losses there are.

    Returns:
        The mean ratio, the ratio of the means, and how many samples were left out of the first.

    Raises:
        UserError: If `loss_fn` does not return the loss of each sample, there are no batches, no
            parameter requires a gradient, a loss is not finite, or an argument is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[3.0, 4.0], [4.0, 3.0]]).double()
        >>> found = curvature.approximation_ratio(model, lambda model, x: model(x)[:, 0], [x])
        >>> round(found.mean, 6), round(found.of_means, 6), found.left_out
        (1.0, 1.0, 0)
    """
    check_positive(rho=rho, floor=floor)
    check_count(steps=steps)
    with MeanLoss(model, loss_fn, batches, size_of) as whole:
        if not per_batch:
            rises = [_rises(whole, rho, steps, floor)]
        else:
            rises = []
            for batch in whole.batches:
                with MeanLoss(model, loss_fn, [batch], size_of) as loss:
                    rises.append(_rises(loss, rho, steps, floor))
            if not rises:
                whole.value()  # says that there are no batches
    one, many, counts = (torch.cat(columns) for columns in zip(*rises))
    ratios = one[counts] / many[counts]
    mean, stderr = Estimate.of(ratios) if len(ratios) else (math.nan, math.nan)
    of_means = (one.mean() / many.mean()).item()
    return Ratio(mean, stderr, of_means, int((~counts).sum()), len(counts))


def _rises(loss: MeanLoss, rho: float, steps: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """By how much one step and many raise each sample's loss, and whether that counts."""
    at = loss.gradient()
    one = climb(loss, Ball(rho), 1, at)
    many = climb(loss, Ball(rho), steps, at)
    nowhere = [torch.zeros_like(p) for p in loss.params]
    here, after_one, after_many = sample_losses(loss, nowhere, one.offset, many.offset)
    by_one, by_many = after_one - here, after_many - here
    rounding = 8 * torch.finfo(loss.space.dtype).eps * (here.abs() + by_many.abs())
    return by_one, by_many, by_many > rounding.clamp(min=floor * max(many.rise, 0.0))
