"""Du et al., "Efficient Sharpness-Aware Minimization", 2022: stochastic weight perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from crsam.optim.ascent.base import Ascent
from crsam.optim.part import share
from crsam.optim.probe import Evaluation, Offset, Probe
from crsam.optim.step import Step


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
    hyper: ClassVar[tuple[str, ...]] = ("rho",)
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        share("share", self.share)

    def __call__(self, step: Step, center: Evaluation, probe: Probe) -> Offset:
        draws = torch.rand(len(step.params), generator=step.generator(), device="cpu")
        scale = step.radius_over(step.grad_norm * self.share)
        scales = scale if isinstance(scale, list) else [scale] * len(step.params)
        nothing = torch.zeros_like(step.grad_norm)
        inside = (draws < self.share).tolist()
        return Offset(list(center.grads), [s if i else nothing for s, i in zip(scales, inside)])
