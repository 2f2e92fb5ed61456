"""The sharpness of PAC-Bayes bounds: the noise that the weights tolerate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.curvature.checks import check_count, check_positive, warn
from crsam.curvature.estimate import progress_bar
from crsam.curvature.mean_loss import MeanLoss
from crsam.curvature.random_vectors import gaussian
from crsam.errors import UserError

AccuracyFn = Callable[[Any, Any], Tensor]


class PacBayesSharpness(NamedTuple):
    """The sharpness and the noise that it is computed from."""

    value: float
    """$1/\\sigma^2$."""
    sigma: float
    accuracy: float
    """The accuracy without noise."""


def pac_bayes_sharpness(
    model: nn.Module,
    accuracy_fn: AccuracyFn,
    batches: Any,
    *,
    drop: float = 0.1,
    num_draws: int = 15,
    tol: float = 0.01,
    seed: int = 0,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> PacBayesSharpness:
    r"""$1/\sigma^2$, σ the largest with $E[\mathrm{accuracy}(w + \sigma v)] \ge$ accuracy − `drop`.

    Jiang et al. 2020, with $v \sim N(0, I)$. σ is found by bisection of log σ, with the same random
    vectors at every σ. The result depends on these vectors. The cost is about ten to twenty times
    `num_draws` forward passes over the data.

    Args:
        model: The model, in the mode it is to be measured in, usually ``eval``. It is left as it
            was.
        accuracy_fn: ``accuracy_fn(model, batch)``: the share of the batch that is right, or a
            number for each sample that says whether it is right.
        batches: A list of batches, a loader, or one batch.
        drop: The accuracy that may be lost.
        num_draws: The number of random vectors that the accuracy is averaged over.
        tol: The relative precision of σ.
        seed: The seed of the random vectors.
        size_of: The number of samples of a batch. By default this is the number of answers that
            `accuracy_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The sharpness, σ and the accuracy without noise.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, or an argument is not
            allowed.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> x = torch.ones(4, 1)  # all right as long as the weight is positive
        >>> found = curvature.pac_bayes_sharpness(model, lambda model, x: model(x) > 0, [x])
        >>> 0.3 < found.sigma < 1.5, found.accuracy
        (True, 1.0)
    """
    check_positive(drop=drop, tol=tol)
    check_count(num_draws=num_draws)
    if drop >= 1:
        raise UserError(f"drop must be below 1, got {drop}")
    with MeanLoss(model, accuracy_fn, batches, size_of) as accuracy:
        here = accuracy.value()
        about = 13 * num_draws
        with progress_bar("PAC-Bayes sharpness", about, progress) as advance:

            def tolerates(sigma: float) -> bool:
                total = 0.0
                for i in range(num_draws):
                    noise = gaussian(accuracy.space, "noise", seed, i).mul_(sigma)
                    with accuracy.perturbed_weights(accuracy.unflatten(noise)):
                        total += accuracy.value()
                    advance()
                return here - total / num_draws <= drop

            sigma = largest(tolerates, tol)
    if not 0 < sigma < math.inf:
        when = "any noise at all" if sigma == 0 else "no noise: it is that of chance"
        warn(f"the accuracy, {here:.3g}, falls by {drop} under {when}")
        return PacBayesSharpness(0.0 if sigma > 0 else math.inf, sigma, here)
    return PacBayesSharpness(1 / sigma**2, sigma, here)


def largest(tolerates: Callable[[float], bool], tol: float) -> float:
    """The largest σ with ``tolerates(σ)``, to a relative `tol`. 0 or infinity outside 1e-9 … 1e9.

    Example:
        >>> round(largest(lambda sigma: sigma < 0.3, 1e-6), 4)
        0.3
        >>> largest(lambda sigma: True, 0.01)
        inf
    """
    low = high = 0.01
    while low > 1e-9 and not tolerates(low):
        low, high = low / 2, low
    if low <= 1e-9:
        return 0.0
    if low == high:
        while high < 1e9 and tolerates(high := high * 2):
            low = high
        if high >= 1e9:
            return math.inf
    while high > (1 + tol) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tolerates(middle) else (low, middle)
    return low
