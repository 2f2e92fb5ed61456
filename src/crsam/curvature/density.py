"""The density of the Hessian's eigenvalues, and the effective dimensionality."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.curvature.checks import check_count, check_positive
from crsam.curvature.estimate import Estimate, Group, Ranks, progress_bar
from crsam.curvature.lanczos import Lanczos, ritz_of
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.random_vectors import rademacher


class Density(NamedTuple):
    """The spectral density: points with weights, for each random vector."""

    nodes: Tensor
    """Ritz values, of shape (num_vectors, steps), in float64 on the CPU."""
    weights: Tensor
    """The share of the spectrum that each node stands for. A row sums to 1."""
    num_weights: int
    """The number of eigenvalues."""
    coarser: tuple[Density, ...] = ()
    """The densities after fewer steps. `trace_of` estimates the quadrature error from them."""

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        r"""$\mathrm{Tr}\, f(\nabla^2 L) = \sum_i f(\lambda_i)$, with its error.

        The error has two parts: the standard error over the vectors, and the quadrature error. The
        second is estimated by the largest change of the value in the second half of the steps. It
        is 0 for polynomials, small for smooth functions, and large for a function with a kink where
        most eigenvalues are.

        Args:
            function: A function of the eigenvalues, element by element.
        """
        terms = torch.where(self.weights > 0, self.weights * function(self.nodes), 0.0)
        value, chance = Estimate.of(terms.sum(1) * self.num_weights)
        moves = [abs(fewer.trace_of(function).value - value) for fewer in self.coarser]
        return Estimate(value, math.hypot(chance, max(moves, default=0.0)))

    def smoothed(self, points: Tensor, width: float) -> Tensor:
        """The density at `points`, with each node replaced by a Gaussian.

        Args:
            points: Eigenvalues, as a tensor of any shape.
            width: The standard deviation of the Gaussian.
        """
        check_positive(width=width)
        z = (points.to(self.nodes).unsqueeze(-1) - self.nodes.flatten()) / width
        bells = torch.exp(-z.square() / 2) / (width * math.sqrt(2 * math.pi))
        return bells @ self.weights.flatten() / len(self.weights)


def spectral_density(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    num_vectors: int = 5,
    steps: int = 50,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Density:
    r"""Stochastic Lanczos quadrature: $\frac1p\sum_i \delta(\lambda - \lambda_i)$ by a few points.

    For a random vector of signs, Lanczos gives points (Ritz values) and weights (the squares of
    the first entries of their vectors). They integrate every polynomial of a degree below twice the
    steps exactly. The mean over vectors is the density. The cost is ``num_vectors · steps``
    products, each a pass over the data with a gradient and its graph for each batch. Each step
    keeps one copy of the weights.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        num_vectors: The number of random vectors, at least 2, so that there is a standard error.
        steps: The number of Lanczos steps for each. If the space is exhausted earlier, the
            remaining points have weight 0.
        seed: The seed of the random vectors.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        Points and weights.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss or a second
            derivative is not finite, or a count is too small.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 3.0]).double())
        >>> density = curvature.spectral_density(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x], num_vectors=2, steps=2
        ... )
        >>> density.nodes[0].round(decimals=6).tolist()
        [1.0, 9.0]
        >>> density.weights[0].round(decimals=6).tolist()
        [0.5, 0.5]
    """
    check_count(2, num_vectors=num_vectors)
    check_count(steps=steps)
    ranks = Ranks(group)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        most = min(steps, loss.space.size)
        # A row holds the diagonal and off-diagonal of a tridiagonal matrix, and its size.
        table = torch.zeros(num_vectors, 2 * most + 1, dtype=torch.float64)
        mine = ranks.share(num_vectors)
        with progress_bar("spectral density", len(mine) * most, progress) as advance:
            for i in mine:
                lanczos = Lanczos(loss.hessian_product, rademacher(loss.space, "probe", seed, i))
                more = True
                while more and len(lanczos.basis) < most:
                    more = lanczos.step()
                    advance()
                taken = len(lanczos.basis)
                table[i, :taken] = torch.tensor(lanczos.alphas, dtype=torch.float64)
                table[i, most : most + taken] = torch.tensor(lanczos.betas, dtype=torch.float64)
                table[i, -1] = taken
        ranks.check_same(loss)
        table = ranks.collect_(table.to(loss.device)).cpu()
    fewer = sorted({-(-most * eighths // 8) for eighths in (4, 5, 6, 7)} - {most})
    coarser = tuple(_quadrature(table, count, loss.space.size) for count in fewer)
    return _quadrature(table, most, loss.space.size)._replace(coarser=coarser)


def _quadrature(table: Tensor, steps: int, num_weights: int) -> Density:
    """The density after the first `steps` of each vector."""
    nodes, weights = torch.zeros(2, len(table), steps, dtype=torch.float64)
    most = table.shape[1] // 2
    for i, row in enumerate(table.tolist()):
        count = min(steps, int(row[-1]))
        ritz = ritz_of(row[:count], row[most : most + count])
        nodes[i, :count] = ritz.values
        weights[i, :count] = ritz.vectors[0].square()
    return Density(nodes, weights, num_weights)


def effective_dimensionality(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    z: float = 1.0,
    num_vectors: int = 5,
    steps: int = 50,
    seed: int = 0,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Estimate:
    r"""$\sum_i \lambda_i/(\lambda_i + z)$ over the positive eigenvalues (Maddox et al. 2020).

    This is the number of directions that the data determine more than a prior does. If the loss is
    the mean negative log-likelihood of n samples and α is the prior's precision, then ``z = α/n``.
    The figure is computed from `spectral_density`, at its cost. Negative eigenvalues count as 0,
    because the definition has none.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        z: The eigenvalue that counts as one half.
        num_vectors: The number of random vectors.
        steps: The number of Lanczos steps for each.
        seed: The seed of the random vectors.
        group: A process group whose ranks share the random vectors. See `hessian_trace`.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The dimensionality and its error. If `z` is small compared with the negative eigenvalues,
        most of the error is that of the quadrature, and more `steps` reduce it.

    Raises:
        UserError: As `spectral_density`, or if `z` is not positive.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 3.0]).double())
        >>> size = curvature.effective_dimensionality(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x], steps=2
        ... )
        >>> round(size.value, 9)  # 1/2 + 9/10
        1.4
    """
    check_positive(z=z)
    density = spectral_density(
        model,
        loss_fn,
        batches,
        num_vectors=num_vectors,
        steps=steps,
        seed=seed,
        group=group,
        size_of=size_of,
        progress=progress,
    )

    def share(eigenvalues: Tensor) -> Tensor:
        positive = eigenvalues.clamp(min=0)
        return positive / (positive + z)

    return density.trace_of(share)
