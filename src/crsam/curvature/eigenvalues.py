"""The largest eigenvalues of the Hessian, and their eigenvectors."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.curvature.checks import check_count, check_one_of, check_positive, warn
from crsam.curvature.estimate import progress_bar
from crsam.curvature.lanczos import Lanczos
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.curvature.random_vectors import gaussian
from crsam.errors import UserError
from crsam.progress import Advance

Which = Literal["value", "magnitude"]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}


def top_eigenvalues(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    k: int = 1,
    which: Which = "value",
    tol: float | None = None,
    max_steps: int = 100,
    seed: int = 0,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> list[float]:
    r"""The `k` largest eigenvalues of $\nabla^2 L$, by Lanczos.

    Lanczos runs until each has a residual
    $\lVert Hx - \theta x\rVert \le \mathrm{tol}\cdot\lvert\theta\rvert$. An eigenvalue of the
    Hessian is at most that far from $\theta$, and usually much nearer. With `k` above 1, a second
    run, orthogonal to the eigenvectors found, looks for further copies of a repeated eigenvalue.

    A run takes about 10 to 50 products. Each product is a pass over the data with a gradient and
    its graph for each batch, and keeps one copy of the weights. The graph of a single batch is
    built only once.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        k: The number of eigenvalues.
        which: ``"value"`` for the largest, ``"magnitude"`` for those farthest from 0, with their
            sign.
        tol: The bound on the residual. Defaults to 1e-6 in float64 and 1e-4 in float32.
        max_steps: The largest number of products in a run. If it is too small, there is a warning.
        seed: The seed of the first vector.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The eigenvalues, the largest (or farthest from 0) first.

    Raises:
        UserError: If there are no batches, no parameter requires a gradient, a loss or a second
            derivative is not finite, or an argument is not allowed.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(3, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 3.0, 2.0]).double())
        >>> top = curvature.top_eigenvalues(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x], k=2
        ... )
        >>> [round(value, 9) for value in top]
        [9.0, 4.0]
    """
    pairs = top_eigenpairs(
        model,
        loss_fn,
        batches,
        k=k,
        which=which,
        tol=tol,
        max_steps=max_steps,
        seed=seed,
        size_of=size_of,
        progress=progress,
    )
    return [pair.value for pair in pairs]


class Eigenpair(NamedTuple):
    """An eigenvalue and its eigenvector."""

    value: float
    vector: dict[str, Tensor]
    """The eigenvector by the names of the parameters. Its norm over all of them is 1."""


def top_eigenpairs(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    k: int = 1,
    which: Which = "value",
    tol: float | None = None,
    max_steps: int = 100,
    seed: int = 0,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> list[Eigenpair]:
    r"""`top_eigenvalues` with their eigenvectors, at the same cost.

    An eigenvector is a direction for `crsam.landscape.surface`. Its sign is random.

    Args:
        model: The model, in the mode it is to be measured in. It is left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        k: The number of eigenvalues.
        which: ``"value"`` for the largest, ``"magnitude"`` for those farthest from 0, with their
            sign.
        tol: The bound on the residual. Defaults to 1e-6 in float64 and 1e-4 in float32.
        max_steps: The largest number of products in a run. If it is too small, there is a warning.
        seed: The seed of the first vector.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The eigenpairs, with the largest (or farthest from 0) eigenvalue first.

    Raises:
        UserError: As `top_eigenvalues`.

    Example:
        >>> import torch
        >>> from crsam import curvature
        >>> model = torch.nn.Linear(3, 1, bias=False).double()
        >>> x = torch.diag(torch.tensor([1.0, 3.0, 2.0]).double())
        >>> (top,) = curvature.top_eigenpairs(
        ...     model, lambda model, x: model(x).square().sum() / 2, [x]
        ... )
        >>> round(top.value, 9), top.vector["weight"].abs().round(decimals=6).tolist()
        (9.0, [[0.0, 1.0, 0.0]])
    """
    check_one_of(("value", "magnitude"), which=which)
    check_count(k=k, max_steps=max_steps)
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        if k > loss.space.size:
            raise UserError(f"k is {k}, but there are only {loss.space.size} parameters")
        tol = TOLERANCE[loss.space.dtype] if tol is None else tol
        check_positive(tol=tol)
        with progress_bar("top eigenvalues", max_steps, progress) as advance:
            found = Search(loss, which, tol, max_steps, seed, advance).top(k)
        return [Eigenpair(p.value, dict(zip(loss.names, loss.unflatten(p.vector)))) for p in found]


class Pair(NamedTuple):
    value: float
    vector: Tensor
    residual: float


class Search:
    """Lanczos until the wanted eigenpairs have converged."""

    def __init__(
        self,
        loss: MeanLoss,
        which: Which,
        tol: float,
        max_steps: int,
        seed: int,
        advance: Advance,
    ) -> None:
        self.hessian_product = loss.hessian_product
        self.space = loss.space
        self.which, self.tol, self.max_steps, self.seed = which, tol, max_steps, seed
        self.advance = advance
        self._num_starts = 0
        self._scale = 0.0

    def top(self, k: int) -> list[Pair]:
        """The `k` first eigenpairs, with all copies of repeated eigenvalues."""
        found = self._sorted(self._run(k, []))
        for _ in range(k if 1 < k < self.space.size else 0):
            (missed,) = self._run(1, found)
            if self._rank(missed.value) <= self._rank(found[-1].value) + missed.residual:
                break
            found = self._sorted([*found, missed])[:k]
        self._warn_unless_converged(found)
        return found

    def _run(self, k: int, outside: list[Pair]) -> list[Pair]:
        """The `k` first eigenpairs in the complement of those found."""
        lanczos = Lanczos(self.hessian_product, self._start(), [p.vector for p in outside])
        steps = max(self.max_steps, k)
        for _ in range(steps):
            more = lanczos.step()
            self.advance()
            ritz = lanczos.ritz()
            order = sorted(
                range(len(ritz.values)), key=lambda i: -self._rank(ritz.values[i].item())
            )
            first = order[:k]
            bounds = (self.tol * ritz.values[first].abs()).clamp(min=self._rounding(lanczos.scale))
            if len(first) == k and (ritz.residuals[first] <= bounds).all():
                break
            if not more and not lanczos.restart(self._start()):
                break
        self._scale = max(self._scale, lanczos.scale)
        return [
            Pair(
                ritz.values[i].item(), lanczos.vector(ritz.vectors[:, i]), ritz.residuals[i].item()
            )
            for i in first
        ]

    def _rounding(self, scale: float) -> float:
        """The rounding error of a residual."""
        return 100 * torch.finfo(self.space.dtype).eps * scale

    def _start(self) -> Tensor:
        self._num_starts += 1
        return gaussian(self.space, "start", self.seed, self._num_starts)

    def _rank(self, value: float) -> float:
        return abs(value) if self.which == "magnitude" else value

    def _sorted(self, pairs: list[Pair]) -> list[Pair]:
        return sorted(pairs, key=lambda pair: -self._rank(pair.value))

    def _warn_unless_converged(self, pairs: list[Pair]) -> None:
        floor = self._rounding(max(abs(pair.value) for pair in pairs))
        far = [p for p in pairs if p.residual > max(self.tol * abs(p.value), floor)]
        if far:
            warn(
                f"{len(far)} of {len(pairs)} eigenvalues have not converged in {self.max_steps} "
                f"steps: they may be off by {max(p.residual for p in far):.2g}; raise max_steps"
            )
        blur = torch.finfo(self.space.dtype).eps * self._scale
        if self.space.dtype != torch.float64 and any(blur > self.tol * abs(p.value) for p in pairs):
            warn(
                f"beside an eigenvalue of about {self._scale:.2g}, float32 does not tell those "
                f"below {blur / self.tol:.2g} to a relative {self.tol:g}: use a model in float64"
            )
