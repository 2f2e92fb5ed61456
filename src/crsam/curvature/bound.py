"""The paper's bound on the loss on unseen data, term by term."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.checks import check_positive
from crsam.curvature.estimate import Group, Ranks
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.trace import trace_and_gradient
from crsam.errors import UserError


class Bound(NamedTuple):
    """The four terms of Theorem 2."""

    loss: float
    r"""$L(w)$."""
    curvature: float
    r"""$\frac{\rho^2}{2}\,\mathrm{Tr}(\nabla^2 L)$."""
    slope: float
    r"""$\gamma\,\lVert\nabla L\rVert_2$."""
    complexity: float
    r"""$h(\lVert w\rVert^2/\rho^2)$."""
    stderr: float
    """The standard error of `curvature`, the only estimated term, and so of the sum."""

    @property
    def total(self) -> float:
        """Their sum, the bound."""
        return self.loss + self.curvature + self.slope + self.complexity


def generalization_bound(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    rho: float = 0.1,
    gamma: float = 1.0,
    delta: float = 0.05,
    temperature: float | None = None,
    num_probes: int = 100,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Bound:
    r"""The right side of the paper's Theorem 2, for Gaussian prior and posterior.

    $$E_{v \sim N(0, I)} L_D(w + \rho v) \le L(w) + \frac{\rho^2}{2}\mathrm{Tr}(\nabla^2 L)
    + \gamma\lVert\nabla L\rVert_2 + h(\lVert w\rVert^2/\rho^2)$$

    It assumes:

    - the prior $N(0, \rho^2 I)$. Its divergence from the posterior $N(w, \rho^2 I)$ is
      $\lVert w\rVert^2/2\rho^2$, so $h(x) = \big(x/2 + \log(1/\delta)\big)/\lambda$;
    - a loss that is quadratic as far as the noise reaches;
    - that $\gamma\lVert\nabla L\rVert$ bounds the moment term of the PAC-Bayes inequality.

    The paper states the theorem informally and names neither γ nor λ. The terms can be compared
    between models, but the sum is no guarantee. The cost is that of `hessian_trace`.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: The training data: a list of batches, a loader, or one batch.
        rho: The standard deviation of the noise.
        gamma: The factor of the gradient's norm.
        delta: The bound holds with probability ``1 - delta``.
        temperature: The inequality's λ. Defaults to the number of samples.
        num_probes: The number of random vectors of the trace.
        seed: The seed of the random vectors.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The four terms. Their sum is ``total``.

    Raises:
        UserError: As `hessian_trace`, or if an argument is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> x = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
        >>> found = curvature.generalization_bound(
        ...     model, lambda model, x: model(x).mean(), [x], rho=0.5, gamma=2.0
        ... )
        >>> found.loss, found.curvature, found.slope, round(found.complexity, 4)
        (7.0, 0.0, 10.0, 3.4979)
    """
    check_positive(rho=rho, gamma=gamma, delta=delta)
    if temperature is not None:
        check_positive(temperature=temperature)
    if delta >= 1:
        raise UserError(f"delta must be below 1, got {delta}")
    ranks = Ranks(group)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        trace, at = trace_and_gradient(loss, num_probes, seed, ranks, progress)
        norm = ranks.first(tn.norm(at.grads))
        squares = tn.norm(loss.params).item() ** 2
    half = rho**2 / 2
    divergence = squares / (2 * rho**2)
    return Bound(
        loss=at.loss,
        curvature=half * trace.value,
        slope=gamma * norm,
        complexity=(divergence + math.log(1 / delta)) / (temperature or at.num_samples),
        stderr=half * trace.stderr,
    )
