"""Surrogate gap guided SAM (Zhuang et al. 2022)."""

from __future__ import annotations

from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class GSAM(Twin):
    """``e = rho_t g0 / ||g0||``; ``Base(g+ - alpha g_perp)``.

    ``g_perp = g0 - (<g0, g+> / ||g+||^2) g+`` and
    ``rho_t = rho_min + (rho - rho_min) clamp((lr - lr_min) / (lr_max - lr_min), 0, 1)``.
    The warm-up multiplies the whole ``rho_t``.
    """

    rho: float
    rho_min: float
    alpha: float
    lr_max: float
    lr_min: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        e = self.radius() * over(g0, norm(g0))
        g_plus = self.evaluate(w + e).gradient
        g_parallel = over((g0 * g_plus).sum() * g_plus, (g_plus * g_plus).sum())
        g_perp = g0 - g_parallel
        return g_plus - self.alpha * g_perp

    def radius(self) -> Tensor:
        rho_t = []
        for rho, group in zip(self.of_group("rho"), self.groups, strict=True):
            share = (float(group["lr"]) - self.lr_min) / (self.lr_max - self.lr_min)
            rho_t.append(self.rho_min + (rho - self.rho_min) * min(max(share, 0.0), 1.0))
        return self.warm(rho_t)
