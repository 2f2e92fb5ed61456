"""Penalising the gradient norm (Zhao et al. 2022)."""

from __future__ import annotations

from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class GradientNormPenalty(Twin):
    """``e = rho g0 / ||g0||``; ``Base((1 - alpha) g0 + alpha g+)``."""

    rho: float
    alpha: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        e = self.radius() * over(g0, norm(g0))
        g_plus = self.evaluate(w + e).gradient
        return (1 - self.alpha) * g0 + self.alpha * g_plus
