"""Random SAM (Liu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class RSAM(Twin):
    """``delta0 = sigma n F(w)``; ``g1 = grad L(w + delta0)``; ``d = delta0 + lam g1``.

    ``e = rho d / ||d||``; ``Base(g+)``. ``n`` is standard normal and ``F(w)`` the filter norm: of
    the slice ``w[i]`` for tensors with more than one dimension, of the whole tensor otherwise. No
    public code is known; METHODS.md calls this reading about 65 % sure.
    """

    rho: float
    sigma: float
    lam: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        delta0 = self.sigma * self.draw_normal() * self.filter_norm(w)
        g1 = self.evaluate(w + delta0).gradient
        d = delta0 + self.lam * g1
        e = self.radius() * over(d, norm(d))
        return self.evaluate(w + e).gradient

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
