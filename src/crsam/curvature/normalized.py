"""The paper's measure of curvature: the Hessian's trace by the gradient's norm."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.checks import check_one_of, warn
from crsam.curvature.draws import rademacher
from crsam.curvature.estimate import Estimate
from crsam.curvature.gradient import NormOf
from crsam.curvature.hvp import Hessian
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.ranks import Group, Ranks
from crsam.curvature.trace import trace_and_gradient


class NormalizedTrace(NamedTuple):
    """``C(w)`` and what it is made of."""

    value: float
    """The trace divided by one of the two norms; NaN where that norm is 0."""
    stderr: float
    """The standard error of the trace, divided by the same norm."""
    trace: Estimate
    grad_norm: float
    """The norm of the gradient of the mean loss over all data."""
    batch_grad_norm: float
    """The plain mean of the norms of the batches' gradients."""

    def by(self, norm: float) -> Estimate:
        """The trace and its error, divided by a norm; NaN where the norm is 0."""
        value, stderr = self.trace
        return Estimate(value / norm, stderr / norm) if norm else Estimate(math.nan, math.nan)


def normalized_trace(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    of: NormOf = "data",
    num_probes: int = 100,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> NormalizedTrace:
    r"""$C(w) = \mathrm{Tr}(\nabla^2 L)/\lVert\nabla L\rVert_2$, the paper's equation 4.

    It grows without bound as the gradient vanishes: near a minimum it shows how near the minimum
    is, not how curved the loss is. The result therefore also holds the trace and both norms of
    `gradient_norm`. There is a warning where the quotient means nothing: where the gradient is not
    larger than what rounding the weights makes of it, or where the trace cannot be told from 0. The
    cost is that of `hessian_trace` and one product more.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        of: The norm to divide by: ``"data"`` for that of the full gradient, ``"batches"`` for the
            mean of the batches' norms, as in the authors' code.
        num_probes: How many; the error falls as the root of it.
        seed: Of the probes.
        group: A process group whose ranks share the probes; see `hessian_trace`.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
        progress: Whether to show a progress bar, if on a terminal.

    Returns:
        ``C(w)``, its standard error, the trace and both norms.

    Raises:
        UserError: As `hessian_trace`, or if `of` is not one of the two.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> x = torch.diag(torch.tensor([3.0, 4.0]).sqrt())
        >>> found = curvature.normalized_trace(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x]
        ... )
        >>> round(found.value, 4)  # Tr = 3 + 4, and the gradient is (3, 4)
        1.4
    """
    check_one_of(("data", "batches"), of=of)
    ranks = Ranks(group)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        trace, at = trace_and_gradient(loss, num_probes, seed, ranks, progress)
        norm = ranks.first(tn.norm(at.grads))
        mean = torch.tensor(at.batch_norm, dtype=torch.float64, device=loss.device)
        batch_norm = ranks.first(mean)
        _warn_of(norm, rounding_of_gradient(loss, seed), trace, num_probes)
    found = NormalizedTrace(math.nan, math.nan, trace, norm, batch_norm)
    value, stderr = found.by(norm if of == "data" else batch_norm)
    return found._replace(value=value, stderr=stderr)


def rounding_of_gradient(loss: MeanLoss, seed: int) -> float:
    """How large a gradient the rounding of the weights makes where there is none.

    Weights that are each off by a relative ``eps``, up or down, move the gradient by ``H`` times
    that.
    """
    weights = loss.flat(loss.params)
    wobble = weights.abs() * rademacher(loss.space, "rounding", seed)
    change = torch.linalg.vector_norm(Hessian(loss) @ wobble)
    return torch.finfo(loss.space.dtype).eps * change.item()


def _warn_of(norm: float, rounding: float, trace: Estimate, num_probes: int) -> None:
    if norm <= 10 * rounding:
        warn(
            f"the gradient's norm, {norm:.2g}, is that of rounding errors: the weights are at a "
            "stationary point, and the normalised trace means nothing"
        )
    if abs(trace.value) <= 2 * trace.stderr:
        warn(
            f"{num_probes} probes do not tell the trace, {trace.value:.3g} ± {trace.stderr:.2g}, "
            "from 0, nor the normalised trace"
        )
