"""How far the loss rises near the weights on average."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.bars import progress_bar
from crsam.curvature.checks import check_count, check_positive
from crsam.curvature.draws import gaussian
from crsam.curvature.estimate import Estimate
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.ranks import Group, Ranks


def average_sharpness(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.1,
    adaptive: bool = True,
    num_draws: int = 50,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Estimate:
    r"""$E[L(w + e)] - L(w)$ with $e \sim N(0, \rho^2\,\mathrm{diag}(w^2))$.

    The average case of `adaptive_sharpness` (Andriushchenko et al. 2023). Each draw is used with
    both signs, so that the slope, which is 0 on average, adds no noise. Two forward passes over
    the data a draw, and one.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: Standard deviation, relative to the weights.
        adaptive: Whether it is relative to the weights; else $e \sim N(0, \rho^2 I)$.
        num_draws: How many; the error falls as the root of it.
        seed: Of the draws.
        group: A process group whose ranks share the draws; see `hessian_trace`.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
        progress: Whether to show a progress bar, if on a terminal.

    Returns:
        The mean rise and its standard error.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss is not finite,
            or an argument is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[3.0, -4.0]]).double()
        >>> rise = curvature.average_sharpness(model, lambda model, x: model(x).mean(), [x])
        >>> abs(rise.value) < 1e-12  # a linear loss rises as much as it falls
        True
    """
    check_positive(rho=rho)
    check_count(2, num_draws=num_draws)
    ranks = Ranks(group)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        rises = torch.zeros(num_draws, dtype=torch.float64, device=loss.device)
        weights = loss.flat(loss.params)
        here = loss.value()
        mine = ranks.share(num_draws)
        with progress_bar("average sharpness", 2 * len(mine), progress) as advance:
            for i in mine:
                e = rho * gaussian(loss.space, "noise", seed, i)
                offset = loss.unflat(e * weights if adaptive else e)
                for _ in range(2):
                    with loss.moved(offset):
                        rises[i] += (loss.value() - here) / 2
                    tn.scale_(offset, -1.0)
                    advance()
        ranks.check_same(loss)
        return Estimate.of(ranks.collect_(rises))
