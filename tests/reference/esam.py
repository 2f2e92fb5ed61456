"""Efficient SAM (Du et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over, top


class ESAM(Twin):
    """``e = (rho / beta) b g0 / ||g0||``, ``b_i = [u_i < beta]`` for tensor ``i``; ``Base(g_S)``.

    ``g_S = grad mean_{i in S} l_i(w + e)``, where ``S`` are the ``max(1, round(gamma batch))``
    samples with the largest ``l_i(w + e) - l_i(w)``; of equal ones the first.
    """

    rho: float
    beta: float
    gamma: float

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        u = torch.rand(len(self.parameters), generator=self.generator)
        b = self.spread([float(u_i < self.beta) for u_i in u.tolist()])
        e = self.radius() / self.beta * b * over(g0, norm(g0))

        with torch.no_grad():
            losses = self.forward(self.split(w + e), self.inputs, self.targets)
        num_selected = max(1, round(self.gamma * len(losses)))
        chosen = top(losses - here.losses, num_selected).sort().values
        return self.evaluate(w + e, self.inputs[chosen], self.targets[chosen]).gradient
