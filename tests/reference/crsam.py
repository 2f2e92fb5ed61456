"""CR-SAM: curvature regularised SAM (Wu, Luo and Wunsch 2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .twin import Evaluation, Twin, norm, over


class CRSAM(Twin):
    """``e = rho g0 / ||g0||``; ``Base(g+ + R)``.

    With ``D1 = g(r) - g(-r)``, ``D2 = g(r) + g(-r) - 2 g0``, ``d1 = L(r) - L(-r)`` and
    ``d2 = L(r) + L(-r) - 2 L0``, all at ``w +- r``:

    * log: ``R = alpha D2 / d2 + beta D1 / d1``, without a term whose difference is not above
      ``8 eps |L0|``;
    * linear: ``R = alpha D2 + beta D1``.

    Then ``R`` is scaled by ``min(1, trust ||g+|| / ||R||)``, unless ``trust`` is None.
    ``r = e`` for the gradient direction. For the random one ``r = rho v / ||v||`` with a normal
    ``v``, its sign chosen so that ``d1 >= 0``; ``g+`` stays at ``w + e``.
    """

    rho: float
    alpha: float
    beta: float
    form: Literal["log", "linear"]
    trust: float | None
    direction: Literal["gradient", "random"] = "gradient"

    def start(self) -> None:
        if self.form not in ("log", "linear"):
            raise ValueError(f"form must be 'log' or 'linear', not {self.form!r}")
        if self.direction not in ("gradient", "random"):
            raise ValueError(f"direction must be 'gradient' or 'random', not {self.direction!r}")

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        g0 = here.gradient
        rho = self.radius()
        e = rho * over(g0, norm(g0))
        g_plus = self.evaluate(w + e).gradient

        if self.direction == "gradient":
            r = e
        else:
            # Objectives draw from a stream of their own, so that no two parts see the same numbers.
            self.generator.manual_seed(self.seed * 1_000_003 + self.t + 2_654_435_769)
            v = self.draw_normal()
            r = rho * over(v, norm(v))
        ahead, behind = self.evaluate(w + r), self.evaluate(w - r)
        # Along the gradient a negative d1 is a fact about the loss; along a random direction it is
        # only the sign of the draw.
        if self.direction == "random" and ahead.loss < behind.loss:
            ahead, behind = behind, ahead

        R = self.regulariser(here, ahead, behind)
        if self.trust is not None and norm(R) > 0:
            R = R * min(1.0, (self.trust * norm(g_plus) / norm(R)).item())
        return g_plus + R

    def regulariser(self, here: Evaluation, ahead: Evaluation, behind: Evaluation) -> Tensor:
        """``R`` before it is bounded."""
        alpha, beta = self.spread(self.of_group("alpha")), self.spread(self.of_group("beta"))
        D1 = ahead.gradient - behind.gradient
        D2 = ahead.gradient + behind.gradient - 2 * here.gradient
        if self.form == "linear":
            return alpha * D2 + beta * D1

        d1 = ahead.loss - behind.loss
        d2 = ahead.loss + behind.loss - 2 * here.loss
        floor = 8 * torch.finfo(here.loss.dtype).eps * here.loss.abs()
        R = torch.zeros_like(D1)
        if d2 > floor:
            R = R + alpha * D2 / d2
        if d1 > floor:
            R = R + beta * D1 / d1
        return R
