"""The approximation ratio: the share of the sharpness that one step of ascent finds."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.curvature.ascent import Ball, backtracking_ascent, projected_ascent
from crsam.curvature.checks import check_count, check_one_of, check_positive
from crsam.curvature.estimate import Estimate
from crsam.curvature.mean_loss import LossFn, MeanLoss

AscentName = Literal["plain", "backtracking"]


class Ratio(NamedTuple):
    """The approximation ratio, in two ways, and the radius it belongs to."""

    mean: float
    """The mean of the samples' ratios; NaN where all samples were left out."""
    stderr: float
    """Its standard error over the samples; NaN for fewer than two samples."""
    of_means: float
    """The mean rise after one step, divided by the mean rise at δ*. It uses every sample."""
    left_out: int
    """The number of samples that `mean` leaves out: δ* raises their loss by less than the floor."""
    num_samples: int
    rho: float
    """The radius of the ball."""


def approximation_ratio(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.05,
    steps: int = 20,
    ascent: AscentName = "plain",
    floor: float = 0.01,
    per_batch: bool = False,
    size_of: SizeOf | None = None,
) -> Ratio:
    r"""$E\big[(\ell(w+\delta) - \ell(w))/(\ell(w+\delta^*) - \ell(w))\big]$, the paper's eq. 2.

    $\delta = \rho\,\nabla L/\lVert\nabla L\rVert$ is the one-step ascent of the mean loss.
    $\delta^*$ is the point after `steps` steps in the same ball. The quotient is taken for each
    sample. It is 1 where the loss is linear.

    `ascent` says how $\delta^*$ is found, and the ratio depends on it:

    - ``"plain"`` is what the paper describes, "a 20-step gradient ascent":
      $e \leftarrow P\big(e + \rho\,\nabla L(w+e)/\lVert\nabla L(w+e)\rVert\big)$, where $P$
      projects onto the ball. The paper does not give the length of a step. Here it is ρ, so the
      first step is $\delta$ itself. The last point counts, even where its loss is below that at
      $w+\delta$.
    - ``"backtracking"`` finds a higher point with the same number of steps. It takes back a step
      that leads down, adapts the length of the steps, and keeps the best point.

    The paper does not give ρ either. The ratio depends on it, so the result holds ρ.

    The mean of the quotients depends strongly on samples whose loss $\delta^*$ hardly raises. Those
    below `floor` are left out and counted. The quotient of the means, given beside it, uses all
    samples. The cost is `steps` forward and backward passes over the data and three forward passes,
    and one forward pass more with backtracking.

    The paper does not say which data $\delta$ belongs to. Here one $\delta$ serves all batches.
    With `per_batch` each batch has its own, as in training. With batches of one sample, each sample
    has its own.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the loss of each sample of the batch, a vector.
        batches: A list of batches, a loader, or one batch; the paper takes 5,000 training samples.
        rho: The radius of the ball. Use the radius of the training to judge its ascent.
        steps: The number of steps to $\delta^*$.
        ascent: How to find $\delta^*$: ``"plain"`` or ``"backtracking"``.
        floor: How much a sample's loss must rise to count, as a share of the mean rise.
        per_batch: Whether each batch has its own ascents.
        size_of: The number of samples of a batch. By default this is the number of losses.

    Returns:
        The mean ratio, the ratio of the means, the number of samples left out, and the radius.

    Raises:
        UserError: If `loss_fn` does not return the loss of each sample, there are no batches, no
            parameter requires a gradient, a loss is not finite, a number is not positive, or
            `ascent` is neither of the two.

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
    check_one_of(("plain", "backtracking"), ascent=ascent)
    with MeanLoss(model, loss_fn, batches, size_of) as whole:
        if not per_batch:
            rises = [_rises(whole, rho, steps, floor, ascent)]
        else:
            rises = []
            for batch in whole.batches:
                with MeanLoss(model, loss_fn, [batch], size_of) as loss:
                    rises.append(_rises(loss, rho, steps, floor, ascent))
            if not rises:
                whole.value()  # raises the error for no batches
    one, many, counts = (torch.cat(columns) for columns in zip(*rises))
    ratios = one[counts] / many[counts]
    mean, stderr = Estimate.of(ratios) if len(ratios) else (math.nan, math.nan)
    of_means = (one.mean() / many.mean()).item()
    return Ratio(mean, stderr, of_means, int((~counts).sum()), len(counts), rho)


def _rises(
    loss: MeanLoss, rho: float, steps: int, floor: float, ascent: AscentName
) -> tuple[Tensor, Tensor, Tensor]:
    """The rise of each sample's loss by one step and by `steps`, and whether the sample counts."""
    start, ball = loss.gradient(), Ball(rho)
    one = projected_ascent(loss, ball, 1, start)
    if ascent == "plain":
        many = projected_ascent(loss, ball, steps, start)
    else:
        many = backtracking_ascent(loss, ball, steps, start).offset
    no_offset = [torch.zeros_like(p) for p in loss.params]
    here, after_one, after_many = loss.sample_losses(no_offset, one, many)
    by_one, by_many = after_one - here, after_many - here
    rounding = 8 * torch.finfo(loss.space.dtype).eps * (here.abs() + by_many.abs())
    return by_one, by_many, by_many > rounding.clamp(min=floor * max(by_many.mean().item(), 0.0))
