"""The rise of the loss near the weights: at its highest, and on average."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.ascent import Ball, Box, Highest, backtracking_ascent
from crsam.curvature.checks import check_count, check_positive, warn
from crsam.curvature.estimate import Estimate, Group, Ranks, progress_bar
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.random_vectors import gaussian


def sharpness(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.05,
    steps: int = 1,
    size_of: SizeOf | None = None,
) -> float:
    r"""SAM's sharpness: $\max_{\lVert e\rVert_2 \le \rho} L(w + e) - L(w)$.

    With one step it is the rise at $e = \rho\,\nabla L/\lVert\nabla L\rVert$ (Foret et al. 2021),
    as in training with all the data as one batch. With more steps, projected gradient ascent
    continues from there. Its result is never lower. The cost is `steps` forward and backward passes
    over the data, and one forward pass.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: The radius of the ball.
        steps: The number of steps of the ascent.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The rise of the loss.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss is not finite,
            or `rho` or `steps` is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> rise = curvature.sharpness(model, lambda model, x: model(x).mean(), [x], rho=0.1)
        >>> round(rise, 4)
        0.5
    """
    check_positive(rho=rho)
    check_count(steps=steps)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        return _checked(backtracking_ascent(loss, Ball(rho), steps), steps).rise


def adaptive_sharpness(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.5,
    steps: int = 20,
    size_of: SizeOf | None = None,
) -> float:
    r"""$\max L(w + e) - L(w)$ over $\lVert e/\lvert w\rvert\,\rVert_2 \le \rho$: the worst case.

    The ball is scaled by the weights (Kwon et al. 2021; Andriushchenko et al. 2023). Scaling one
    layer up and the next down, which does not change the loss, does not change this figure either.
    Weights of 0 do not move. For the average over such a ball see `average_sharpness`. The cost is
    `steps` forward and backward passes over the data, and one forward pass.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: The radius of the ball, relative to the weights.
        steps: The number of steps of the projected ascent.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The rise of the loss.

    Raises:
        UserError: As `sharpness`.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> rise = curvature.adaptive_sharpness(
        ...     model, lambda model, x: model(x).mean(), [x], rho=0.1
        ... )
        >>> round(rise, 4)
        0.5
    """
    check_positive(rho=rho)
    check_count(steps=steps)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        ball = Ball(rho, [p.detach().abs() for p in loss.params])
        return _checked(backtracking_ascent(loss, ball, steps), steps).rise


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

    This is the average case of `adaptive_sharpness` (Andriushchenko et al. 2023). Each random
    vector is used with both signs: the slope, whose mean is 0, then adds no noise. The cost is two
    forward passes over the data for each vector, and one more.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: The standard deviation of the noise.
        adaptive: Whether it is relative to the weights. Otherwise $e \sim N(0, \rho^2 I)$.
        num_draws: The number of random vectors. The error falls as the root of it.
        seed: The seed of the random vectors.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

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
        weights = loss.flatten(loss.params)
        here = loss.value()
        mine = ranks.share(num_draws)
        with progress_bar("average sharpness", 2 * len(mine), progress) as advance:
            for i in mine:
                e = rho * gaussian(loss.space, "noise", seed, i)
                offset = loss.unflatten(e * weights if adaptive else e)
                for _ in range(2):
                    with loss.perturbed_weights(offset):
                        rises[i] += (loss.value() - here) / 2
                    tn.scale_(offset, -1.0)
                    advance()
        ranks.check_same(loss)
        return Estimate.of(ranks.collect_(rises))


def epsilon_sharpness(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    epsilon: float = 1e-3,
    steps: int = 20,
    size_of: SizeOf | None = None,
) -> float:
    r"""$100\,(\max_z L(w + z) - L(w))/(1 + L(w))$ in a small box.

    The box is $\lvert z_i\rvert \le \epsilon(\lvert w_i\rvert + 1)$ (Keskar et al. 2017). The
    maximum is found by projected ascent along the signs of the gradient, not by L-BFGS-B. The cost
    is `steps` forward and backward passes over the data, and one forward pass.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        epsilon: The size of the box.
        steps: The number of steps of the projected ascent.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.

    Returns:
        The rise of the loss, in percent of one more than the loss.

    Raises:
        UserError: As `sharpness`.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> x = torch.tensor([[3.0, -4.0]]).double()
        >>> rise = curvature.epsilon_sharpness(model, lambda model, x: model(x).mean(), [x])
        >>> round(rise, 6)  # 7 · 0.001, in percent
        0.7
    """
    check_positive(epsilon=epsilon)
    check_count(steps=steps)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        sides = [epsilon * (p.detach().abs() + 1) for p in loss.params]
        highest = _checked(backtracking_ascent(loss, Box(sides), steps), steps)
        return 100 * highest.rise / (1 + highest.loss - highest.rise)


def _checked(highest: Highest, steps: int) -> Highest:
    """Warns if the ascent found no higher point. There may still be one near the weights."""
    if steps > 1 and not any(offset.any() for offset in highest.offset):
        warn("the gradient leads nowhere higher: the sharpness of 0 is that of the weights alone")
    return highest
