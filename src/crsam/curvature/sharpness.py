"""How far the loss rises near the weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from crsam._batches import SizeOf
from crsam.curvature.ascent import Ball, Box, Peak, climb
from crsam.curvature.checks import check_count, check_positive, warn
from crsam.curvature.mean_loss import LossFn, MeanLoss


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

    With one step $e = \rho\,\nabla L/\lVert\nabla L\rVert$ (Foret et al. 2021), as in training
    with all the data as the batch. With more, projected gradient ascent from there, which is never
    lower. `steps` forward and backward passes over the data, and a forward pass.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: Radius of the ball.
        steps: Of the ascent.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

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
        return _searched(climb(loss, Ball(rho), steps), steps).rise


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

    The ball is scaled by the weights (Kwon et al. 2021; Andriushchenko et al. 2023), so that
    scaling one layer up and the next down, which changes nothing, changes nothing here. Weights of
    0 stay. For the average over such a ball see `average_sharpness`. `steps` forward and backward
    passes over the data, and a forward pass.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        rho: Radius of the ball, relative to the weights.
        steps: Of the projected ascent.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

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
        return _searched(climb(loss, ball, steps), steps).rise


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

    Where $\lvert z_i\rvert \le \epsilon(\lvert w_i\rvert + 1)$: Keskar et al. 2017, with projected
    ascent by signs in place of L-BFGS-B. `steps` forward and backward passes over the data, and a
    forward pass.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        epsilon: Size of the box.
        steps: Of the projected ascent.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

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
        peak = _searched(climb(loss, Box(sides), steps), steps)
        return 100 * peak.rise / (1 + peak.loss - peak.rise)


def _searched(peak: Peak, steps: int) -> Peak:
    """Warns where there was no way up to follow: a higher place may be near all the same."""
    if steps > 1 and not any(offset.any() for offset in peak.offset):
        warn("the gradient leads nowhere higher: the sharpness of 0 is that of the weights alone")
    return peak
