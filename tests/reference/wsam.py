"""Weighted SAM (Yue et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class WSAM(Twin):
    """``e = rho g0 / ||g0||``, ``a = gamma / (1 - gamma)``.

    Coupled: ``Base((1 - a) g0 + a g+)``. Decoupled: ``Base(g0)``, then
    ``w <- w - lr a (g+ - g0)`` with the learning rate of the parameter's group.
    """

    rho: float
    gamma: float
    decoupled: bool = False

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        a = self.gamma / (1 - self.gamma)
        e = self.radius() * over(g0, norm(g0))
        g_plus = self.evaluate(w + e).gradient
        if not self.decoupled:
            return (1 - a) * g0 + a * g_plus
        self.sharpness = a * (g_plus - g0)
        return g0

    def finish(self) -> None:
        if self.decoupled:
            lr = self.spread([float(group["lr"]) for group in self.groups])
            moved = self.split(self.weights() - lr * self.sharpness)
            with torch.no_grad():
                for p, value in zip(self.parameters, moved, strict=True):
                    p.copy_(value)
