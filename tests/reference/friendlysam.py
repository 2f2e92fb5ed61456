"""Friendly SAM (Li et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class FriendlySAM(Twin):
    """``m <- decay m + (1 - decay) g0`` from 0; ``d = g0 - sigma m``; ``e = rho d / ||d||``.

    ``Base(g+)``.
    """

    rho: float
    sigma: float
    decay: float

    def start(self) -> None:
        self.m = torch.zeros_like(self.weights())

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        self.m = self.decay * self.m + (1 - self.decay) * g0
        d = g0 - self.sigma * self.m
        e = self.radius() * over(d, norm(d))
        return self.evaluate(w + e).gradient
