"""Lanczos with full reorthogonalisation: approximates a large matrix by a tridiagonal one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Ritz(NamedTuple):
    """Eigenpairs of the tridiagonal matrix, smallest value first."""

    values: Tensor
    vectors: Tensor
    """The eigenvectors as columns, in the basis of the Krylov space."""
    residuals: Tensor
    """``‖H x − θ x‖`` of each: some eigenvalue of ``H`` is at most that far from ``θ``."""


def ritz_of(alphas: Sequence[float], betas: Sequence[float]) -> Ritz:
    """The eigenpairs of the matrix with diagonal `alphas` and off-diagonal ``betas[:-1]``."""
    diagonal = torch.tensor(alphas, dtype=torch.float64)
    beside = torch.tensor(betas, dtype=torch.float64)
    off = torch.diag(beside[:-1], 1)
    values, vectors = torch.linalg.eigh(torch.diag(diagonal) + off + off.T)
    return Ritz(values, vectors, beside[-1] * vectors[-1].abs())


class Lanczos:
    r"""Builds a basis $Q$ of the Krylov space in which $H$ is tridiagonal, vector by vector.

    In exact arithmetic each new vector is orthogonal to all earlier ones but the last two. In
    floating point it is not, and converged eigenvalues appear again. Every vector is therefore
    orthogonalised against all others, twice. Each step keeps one copy of the weights.

    Args:
        product: ``H v``.
        start: The first vector. It need not be normalised.
        outside: Orthonormal vectors. The basis stays in their complement.

    Example:
        >>> H = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
        >>> lanczos = Lanczos(lambda v: H @ v, torch.ones(3, dtype=torch.float64))
        >>> while lanczos.step():
        ...     pass
        >>> lanczos.ritz().values
        tensor([1.0000, 2.0000, 5.0000], dtype=torch.float64)
    """

    def __init__(
        self, product: Callable[[Tensor], Tensor], start: Tensor, outside: Sequence[Tensor] = ()
    ) -> None:
        self.product = product
        self.outside = list(outside)
        self.basis: list[Tensor] = []
        self.alphas: list[float] = []
        self.betas: list[float] = []
        """The last one belongs to `_next`, the vector that follows the basis."""
        self._next = self._orthogonal(start)
        self._next /= torch.linalg.vector_norm(self._next)

    @property
    def scale(self) -> float:
        """The largest entry of the tridiagonal matrix. Rounding errors are relative to it."""
        return max([abs(a) for a in self.alphas] + self.betas, default=0.0)

    def step(self) -> bool:
        """Adds a vector to the basis. Returns false if the space is exhausted."""
        q = self._next
        self.basis.append(q)
        w = self.product(q)
        self.alphas.append(torch.dot(q, w).item())
        w = self._orthogonal(w)
        beta = torch.linalg.vector_norm(w).item()
        exhausted = beta <= 100 * torch.finfo(w.dtype).eps * max(self.scale, beta)
        self.betas.append(0.0 if exhausted else beta)
        if not exhausted:
            self._next = w / beta
        return not exhausted

    def restart(self, start: Tensor) -> bool:
        """Continues with a vector from outside the exhausted space. False if there is none."""
        size = torch.linalg.vector_norm(start)
        fresh = self._orthogonal(start)
        norm = torch.linalg.vector_norm(fresh)
        if len(self.basis) + len(self.outside) >= len(start) or norm <= 1e-5 * size:
            return False
        self._next = fresh / norm
        return True

    def ritz(self) -> Ritz:
        return ritz_of(self.alphas, self.betas)

    def vector(self, coefficients: Tensor) -> Tensor:
        """The normalised combination of the basis vectors."""
        total = torch.zeros_like(self.basis[0])
        for q, c in zip(self.basis, coefficients.tolist(), strict=True):
            total.add_(q, alpha=c)
        return total / torch.linalg.vector_norm(total)

    def _orthogonal(self, vector: Tensor) -> Tensor:
        """`vector` minus its components along the basis and `outside`."""
        vector = vector.clone()
        for _ in range(2):
            known = [*self.outside, *self.basis]
            for q, c in [(q, torch.dot(q, vector)) for q in known]:
                vector.addcmul_(q, c, value=-1)
        return vector
