"""Ascents with random draws: those of R-SAM and ESAM.

Liu et al., "Random Sharpness-Aware Minimization", 2022.
Du et al., "Efficient Sharpness-Aware Minimization", 2022: stochastic weight perturbation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam.optim.context import StepContext
from crsam.optim.part import Ascent, at_least, non_negative, share
from crsam.optim.probe import Evaluation, Offset, Probe


@dataclass(frozen=True)
class Random(Ascent):
    r"""From a random point: $e = \rho\,(\delta_0 + \lambda g)/\lVert \delta_0 + \lambda g \rVert$.

    $\delta_0 \sim N(0, \sigma_t^2)$ times the norm of the weight's filter, and $g$ is the gradient
    at $w + \delta_0$. This is the form of the authors' code
    (https://github.com/RSAM-Optimizer/R-SAM, ``vit_jax/train.py``). There
    $\sigma_t = \sigma\,(1 + (r - 1)(1 - \cos(\pi t/T))/2)$ rises from $\sigma = 0.0005$ to
    $r\sigma = 0.0025$ over the $T$ steps of training.

    The first pass of the step is at $w + \delta_0$, and no pass is at $w$. If the objective or the
    schedule needs the gradient at $w$, the first pass is at $w$, and this ascent costs one pass
    more.

    Args:
        rho: Length of the offset.
        sigma: Standard deviation of the random start at the first step, relative to the norms of
            the filters.
        lam: Weight of the gradient against the random start.
        sigma_rise: The factor by which `sigma` rises over training.
        total_steps: Length of training. With None, `sigma` does not rise.
    """

    rho: float = 0.05
    sigma: float = 0.0005
    lam: float = 2.0
    sigma_rise: float = 5.0
    total_steps: int | None = None
    group_options: ClassVar[tuple[str, ...]] = ("rho", "sigma", "lam")

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative("sigma_rise", self.sigma_rise)
        if self.total_steps is not None:
            at_least("total_steps", self.total_steps, 1)

    def factor(self, name: str, count: int) -> float:
        if name != "sigma" or self.total_steps is None:
            return 1.0
        done = min((count + 1) / self.total_steps, 1.0)
        return 1.0 + (self.sigma_rise - 1.0) * (1.0 - math.cos(math.pi * done)) / 2

    def start(self, context: StepContext) -> Offset:
        """The random point ``δ0``."""
        start = tn.multiply_(context.draw(torch.randn), [_filter_norms(p) for p in context.params])
        return Offset(tn.scale_(start, context.option("sigma")), 1.0)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        if context.start is None:
            start = self.start(context)
            center = probe(start)
        else:
            start = context.start
        direction = tn.scale_(center.grads, context.option("lam"))
        tn.add_(direction, start.direction)
        return Offset(direction, context.radius_over(tn.norm(direction)))


@dataclass(frozen=True)
class RandomTensors(Ascent):
    r"""The gradient's offset on a random choice of tensors.

    $e = (\rho/\beta)\,M g_0/\lVert g_0\rVert$. Each tensor is in with probability $\beta$, drawn
    anew at every step.

    Args:
        rho: Length of the offset, were all tensors in.
        share: The probability $\beta$.
    """

    rho: float = 0.05
    share: float = 0.5
    group_options: ClassVar[tuple[str, ...]] = ("rho",)
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        share("share", self.share)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        draws = torch.rand(len(context.params), generator=context.generator(), device="cpu")
        scale = context.radius_over(context.grad_norm * self.share)
        scales = scale if isinstance(scale, list) else [scale] * len(context.params)
        nothing = torch.zeros_like(context.grad_norm)
        inside = (draws < self.share).tolist()
        return Offset(list(center.grads), [s if i else nothing for s, i in zip(scales, inside)])


def _filter_norms(weight: Tensor) -> Tensor:
    """The norm of each ``weight[i]``, or of the whole where it has at most one dimension."""
    dims = tuple(range(1, weight.ndim)) if weight.ndim > 1 else None
    norms = torch.linalg.vector_norm(weight, dim=dims, keepdim=True)
    return tn.spread_along(weight, norms)
