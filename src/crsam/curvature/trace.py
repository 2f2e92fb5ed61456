"""Trace, Frobenius norm and normalised trace of the Hessian, by random vectors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam.curvature.checks import check_count, check_one_of, warn
from crsam.curvature.derivatives import Gradient, GradientSum, finite
from crsam.curvature.estimate import Estimate, Group, Ranks, progress_bar
from crsam.curvature.gradient import NormOf
from crsam.curvature.mean_loss import BatchLoss, LossFn, MeanLoss
from crsam.curvature.random_vectors import rademacher
from crsam.curvature.taylor import quadratic_forms


def hessian_trace(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    num_probes: int = 100,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Estimate:
    r"""$\mathrm{Tr}(\nabla^2 L) = E[v^\top \nabla^2 L\, v]$ with random signs $v$ (Hutchinson).

    The number of random vectors (probes) is fixed: a rule that stops when the running mean settles
    stops by chance. Each batch costs about three gradients, and about one more gradient for each
    probe (`crsam.curvature.taylor` says how). Memory grows neither with the number of probes nor
    with the number of batches.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        num_probes: The number of random vectors. The error falls as the root of it.
        seed: The seed of the probes. They are the same on every device.
        group: A process group, such as ``torch.distributed.group.WORLD``, whose ranks share the
            probes. All ranks must have the same weights and read all the data. All get the same
            estimate. By default this process does all the work.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The trace and its standard error.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss or a second
            derivative is not finite, or `num_probes` is below 2.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> curvature.hessian_trace(model, lambda model, x: model(x).square().mean(), [x])
        Estimate(value=10.0, stderr=0.0)
    """
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        return trace_and_gradient(loss, num_probes, seed, Ranks(group), progress)[0]


def trace_and_gradient(
    loss: MeanLoss, num_probes: int, seed: int, ranks: Ranks, progress: bool
) -> tuple[Estimate, Gradient]:
    """The trace, and the mean loss with its gradient, which the same pass computes."""
    check_count(2, num_probes=num_probes)
    forms = torch.zeros(num_probes, dtype=torch.float64, device=loss.device)
    gradient = GradientSum(loss.params)
    form_of = quadratic_forms(loss)
    mine = ranks.share(num_probes)

    with progress_bar("Hessian trace", len(mine) * len(loss.batches), progress) as advance:

        def add(batch_loss: BatchLoss) -> None:
            form = form_of(batch_loss)
            gradient.add(form.gradient, batch_loss.size)
            for i in mine:
                v = loss.unflatten(rademacher(loss.space, "probe", seed, i))
                forms[i] += batch_loss.size * form(v)
                advance()

        seen = loss.for_each_batch(add)
    ranks.check_same(loss)
    trace = Estimate.of(finite(ranks.collect_(forms / seen.num_samples)))
    return trace, gradient.mean(seen)


def hessian_frobenius_norm(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    num_probes: int = 100,
    seed: int = 0,
    chunk: int = 8,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Estimate:
    r"""$\lVert\nabla^2 L\rVert_F = \sqrt{E\lVert\nabla^2 L\,v\rVert^2}$ with random signs $v$.

    The probes are those of `hessian_trace`. Here the whole product counts, summed over the batches.
    Every `chunk` of probes costs one pass over the data, with a gradient and its graph for each
    batch.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        num_probes: The number of random vectors. The error falls as the root of it.
        seed: The seed of the random vectors.
        chunk: The number of probes in one pass. Each needs two copies of the weights.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The norm and its standard error, to first order because the norm is a root.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss or a second
            derivative is not finite, or a count is too small.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        >>> norm = curvature.hessian_frobenius_norm(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x]
        ... )
        >>> round(norm.value**2)  # 9² + 16²
        337
    """
    check_count(2, num_probes=num_probes)
    check_count(chunk=chunk)
    ranks = Ranks(group)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        squares = torch.zeros(num_probes, dtype=torch.float64, device=loss.device)
        mine = ranks.share(num_probes)
        with progress_bar("Frobenius norm", len(mine), progress) as advance:
            for start in range(0, len(mine), chunk):
                part = mine[start : start + chunk]
                vectors = [rademacher(loss.space, "probe", seed, i) for i in part]
                for i, product in zip(part, loss.hessian_products(vectors), strict=True):
                    squares[i] = torch.linalg.vector_norm(product, dtype=torch.float64) ** 2
                    advance()
        ranks.check_same(loss)
        mean, stderr = Estimate.of(ranks.collect_(squares))
    norm = math.sqrt(mean)
    return Estimate(norm, stderr / (2 * norm) if norm > 0 else 0.0)


class NormalizedTrace(NamedTuple):
    """``C(w)`` and the numbers it consists of."""

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
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        of: The norm to divide by: ``"data"`` for that of the full gradient, ``"batches"`` for the
            mean of the batches' norms, as in the authors' code.
        num_probes: The number of random vectors. The error falls as the root of it.
        seed: The seed of the random vectors.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

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
    """The norm of the gradient that rounding of the weights causes at a stationary point.

    A relative change of each weight by ``eps``, up or down, changes the gradient by ``H`` times the
    change.
    """
    weights = loss.flatten(loss.params)
    change_of_weights = weights.abs() * rademacher(loss.space, "rounding", seed)
    change = loss.hessian_product(change_of_weights)
    return torch.finfo(loss.space.dtype).eps * torch.linalg.vector_norm(change).item()


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
