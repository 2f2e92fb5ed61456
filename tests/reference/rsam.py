"""Random SAM (Liu et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class RSAM(Twin):
    """``delta0 = sigma_t n F(w)``; ``g1 = grad L(w + delta0)``; ``d = delta0 + lam g1``.

    ``e = rho_t d / ||d||``; ``Base(g+)``. ``n`` is standard normal and ``F(w)`` the filter norm: of
    the slice ``w[i]`` for tensors with more than one dimension, of the whole tensor otherwise.
    After the authors' code, github.com/RSAM-Optimizer/R-SAM, ``vit_jax/train.py``:
    ``sigma_t = sigma (1 + (sigma_rise - 1) (1 - cos(pi t/T))/2)`` with ``t`` from 1, and
    ``rho_t = rho_min + (rho - rho_min) (lr - lr_min)/(lr_max - lr_min)``, ``rho_min = 0.6 rho``.
    No pass is at ``w``: the loss of the step is that at ``w + delta0``, where the batch-norm
    statistics move.
    """

    rho: float
    sigma: float
    lam: float
    sigma_rise: float = 5.0
    total_steps: int = 0
    rho_share: float = 0.6
    lr_max: float | None = None
    lr_min: float = 0.0

    def start(self) -> None:
        self.first_rates = [float(group["lr"]) for group in self.groups]

    def first_point(self, w: Tensor) -> Tensor:
        sigma = self.spread(self.of_group("sigma"))
        if self.total_steps:
            t = min(self.t + 1, self.total_steps)
            scale = -math.cos(math.pi * t / self.total_steps) * 0.5 + 0.5
            sigma = sigma * (scale * (self.sigma_rise - 1) + 1)
        self.delta0 = sigma * self.draw_normal() * self.filter_norm(w)
        return w + self.delta0

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        d = self.delta0 + self.lam * here.gradient
        e = self.radius() * over(d, norm(d))
        return self.evaluate(w + e).gradient

    def radius(self) -> Tensor:
        rho_t = []
        rates = zip(self.of_group("rho"), self.groups, self.first_rates, strict=True)
        for rho, group, first in rates:
            rho_min, lr_max = self.rho_share * rho, self.lr_max or first
            share = (float(group["lr"]) - self.lr_min) / (lr_max - self.lr_min)
            rho_t.append(rho_min + (rho - rho_min) * min(max(share, 0.0), 1.0))
        return self.warm(rho_t)

    def filter_norm(self, w: Tensor) -> Tensor:
        """The norm of the filter that an entry belongs to, for each entry."""
        norms = []
        for piece in self.split(w):
            norms.append(torch.empty_like(piece))
            if piece.ndim > 1:
                for i in range(len(piece)):
                    norms[-1][i] = norm(piece[i])
            else:
                norms[-1][...] = norm(piece)
        return self.join(norms)
