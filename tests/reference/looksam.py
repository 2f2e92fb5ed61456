"""LookSAM (Liu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class LookSAM(Twin):
    """A SAM step ``Base(g+)`` at ``t % k == 0``, else ``Base(g0 + alpha (||g0|| / ||g_v||) g_v)``.

    ``g_v = g+ - (<g+, g0> / ||g0||^2) g0`` is kept from the last SAM step. The reused term is 0
    where ``||g_v|| <= 8 eps ||g0||``, with the ``g0`` of the step that reuses it.
    """

    rho: float
    k: int
    alpha: float

    def start(self) -> None:
        self.g_v = torch.zeros_like(self.weights())

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        if self.t % self.k == 0:
            e = self.radius() * over(g0, norm(g0))
            g_plus = self.evaluate(w + e).gradient
            self.g_v = g_plus - over((g_plus * g0).sum() * g0, (g0 * g0).sum())
            return g_plus
        if norm(self.g_v) <= 8 * torch.finfo(g0.dtype).eps * norm(g0):
            return g0
        return g0 + self.alpha * norm(g0) / norm(self.g_v) * self.g_v
