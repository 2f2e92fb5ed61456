"""Sparse SAM (Mi et al. 2022)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over, top


class SSAM(Twin):
    """``e = rho (g0 / ||g0||) M``; ``Base(g+)``, with ``||g0||`` over all entries, masked or not.

    ``M`` has ``N`` entries, all ones until it is renewed, which is done before its use at the steps
    ``t > 0`` with ``t % period == 0``. Then it has ``K = round((1 - sparsity) N)`` ones.

    Fisher: the top ``K`` of ``F = sum_i (grad l_i(w))^2`` over the first ``num_samples`` samples.

    Dynamic: ``n_d = floor(share K)``, ``share = drop (1 + cos(pi min(t / total_steps, 1))) / 2``
    (``drop`` without ``total_steps``). The ``K - n_d`` live entries with the largest ``|g0|`` stay;
    of all others the ``n_d`` with the largest uniform scores grow.

    Of equal entries the first win.
    """

    rho: float
    sparsity: float
    mask: Literal["fisher", "dynamic"]
    period: int
    num_samples: int
    drop: float
    total_steps: int | None = None

    def start(self) -> None:
        if self.mask not in ("fisher", "dynamic"):
            raise ValueError(f"mask must be 'fisher' or 'dynamic', not {self.mask!r}")
        self.M = torch.ones_like(self.weights())

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        if self.t > 0 and self.t % self.period == 0:
            K = round((1 - self.sparsity) * w.numel())
            ones = self.by_fisher(w, K) if self.mask == "fisher" else self.by_regrowth(g0, K)
            self.M = torch.zeros_like(w)
            self.M[ones] = 1
        e = self.radius() * over(g0, norm(g0)) * self.M
        return self.evaluate(w + e).gradient

    def by_fisher(self, w: Tensor, K: int) -> Tensor:
        """Indices of the ``K`` entries with the largest Fisher information."""
        num_samples = min(self.num_samples, len(self.inputs))
        leaves = self.leaves(w)
        losses = self.forward(leaves, self.inputs[:num_samples], self.targets[:num_samples])
        F = torch.zeros_like(w)
        for loss in losses:
            gradients = torch.autograd.grad(
                loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            F += self.join(list(gradients)) ** 2
        return top(F, K)

    def by_regrowth(self, g0: Tensor, K: int) -> Tensor:
        """Indices of the ``K`` entries that stay or grow."""
        share = self.drop
        if self.total_steps is not None:
            progress = min(self.t / self.total_steps, 1.0)
            share = self.drop * (1 + math.cos(math.pi * progress)) / 2
        num_dropped = math.floor(share * K)

        # A magnitude is never negative, so -1 puts the dead entries behind all live ones.
        magnitude = torch.where(self.M == 1, g0.abs(), -torch.ones_like(g0))
        kept = top(magnitude, K - num_dropped)
        scores = self.draw_uniform()
        scores[kept] = -1
        return torch.cat([kept, top(scores, num_dropped)])
