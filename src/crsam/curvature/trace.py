"""Trace and Frobenius norm of the Hessian, by random probes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from crsam._batches import SizeOf
from crsam.curvature.bars import progress_bar
from crsam.curvature.checks import check_count
from crsam.curvature.draws import rademacher
from crsam.curvature.estimate import Estimate
from crsam.curvature.hvp import Hessian, finite
from crsam.curvature.mean_loss import Evaluation, LossFn, MeanGradient, MeanLoss
from crsam.curvature.quadratic import Form, visit_forms
from crsam.curvature.ranks import Group, Ranks


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

    A fixed number of probes: stopping when the running mean settles stops by chance. For each batch
    about three gradients to begin with, and then what one gradient costs for each probe, without
    the product (`crsam.curvature.quadratic` says how). Memory grows neither with the number of
    probes nor with that of batches.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        num_probes: How many; the error falls as the root of it.
        seed: Of the probes. The probe of a number and a seed is the same on every device.
        group: A process group, such as ``torch.distributed.group.WORLD``, whose ranks share the
            probes; each must have the same weights and go over all the data, and gets the same
            estimate. None: this process does it all.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
        progress: Whether to show a progress bar, if on a terminal.

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
) -> tuple[Estimate, Evaluation]:
    """The trace, and the loss and its gradient, which the same pass gives."""
    check_count(2, num_probes=num_probes)
    forms = torch.zeros(num_probes, dtype=torch.float64, device=loss.device)
    total = MeanGradient(loss.params)
    mine = ranks.share(num_probes)

    with progress_bar("Hessian trace", len(mine) * len(loss.batches), progress) as advance:

        def add(form: Form, size: int) -> None:
            total.add(form.gradient, size)
            for i in mine:
                v = loss.unflat(rademacher(loss.space, "probe", seed, i))
                forms[i] += size * form(v)
                advance()

        seen = visit_forms(loss, add)
    ranks.check_same(loss)
    trace = Estimate.of(finite(ranks.collect_(forms / seen.num_samples)))
    return trace, total.evaluation(seen)


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

    The probes are those of `hessian_trace`, but here the whole product counts, summed over the
    batches: a pass over the data, with a gradient and its graph for each batch, for every `chunk`
    of probes.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        num_probes: How many; the error falls as the root of it.
        seed: Of the probes.
        chunk: How many probes to take along at once; each needs two copies of the weights.
        group: A process group whose ranks share the probes; see `hessian_trace`.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
        progress: Whether to show a progress bar, if on a terminal.

    Returns:
        The norm and its standard error (to first order, since it is a root).

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
        mine, hessian = ranks.share(num_probes), Hessian(loss)
        with progress_bar("Frobenius norm", len(mine), progress) as advance:
            for start in range(0, len(mine), chunk):
                part = mine[start : start + chunk]
                vectors = [rademacher(loss.space, "probe", seed, i) for i in part]
                for i, product in zip(part, hessian.products(vectors), strict=True):
                    squares[i] = torch.linalg.vector_norm(product, dtype=torch.float64) ** 2
                    advance()
        ranks.check_same(loss)
        mean, stderr = Estimate.of(ranks.collect_(squares))
    norm = math.sqrt(mean)
    return Estimate(norm, stderr / (2 * norm) if norm > 0 else 0.0)
