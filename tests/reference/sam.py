"""SAM (Foret et al. 2021) and its adaptive form ASAM (Kwon et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class SAM(Twin):
    """``e = rho g0 / ||g0||``; ``Base(g+)``."""

    rho: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        e = self.radius() * over(g0, norm(g0))
        return self.evaluate(w + e).gradient


class ASAM(Twin):
    """``e = rho T^2 g0 / ||T g0||``; ``Base(g+)``.

    ``T = |w| + eta`` for tensors with more than one dimension, 1 for the others.
    """

    rho: float
    eta: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        T = self.scale(w)
        e = self.radius() * over(T**2 * g0, norm(T * g0))
        return self.evaluate(w + e).gradient

    def scale(self, w: Tensor) -> Tensor:
        """``T``."""
        return self.join(
            [
                piece.abs() + self.eta if piece.ndim > 1 else torch.ones_like(piece)
                for piece in self.split(w)
            ]
        )
