"""Adaptive-policy SAM (Jiang et al. 2023)."""

from __future__ import annotations

import math

from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class AESAM(Twin):
    """``e = rho g0 / ||g0||``; ``Base(g+)`` if ``||g0||^2 >= mu + c_t sigma``, else ``Base(g0)``.

    First ``mu <- decay mu + (1 - decay) ||g0||^2``, then
    ``sigma^2 <- decay sigma^2 + (1 - decay) (||g0||^2 - mu)^2``, both from 0.
    ``c_t = s lambda1 + (1 - s) lambda2``, ``s = min(t / total_steps, 1)`` (0.5 without
    ``total_steps``).
    """

    rho: float
    lambda1: float
    lambda2: float
    decay: float
    total_steps: int | None = None

    def start(self) -> None:
        self.mu = 0.0
        self.sigma2 = 0.0

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        squared = (g0 * g0).sum().item()
        self.mu = self.decay * self.mu + (1 - self.decay) * squared
        self.sigma2 = self.decay * self.sigma2 + (1 - self.decay) * (squared - self.mu) ** 2

        s = 0.5 if self.total_steps is None else min(self.t / self.total_steps, 1.0)
        c_t = s * self.lambda1 + (1 - s) * self.lambda2
        if squared < self.mu + c_t * math.sqrt(self.sigma2):
            return g0
        e = self.radius() * over(g0, norm(g0))
        return self.evaluate(w + e).gradient
