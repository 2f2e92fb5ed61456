"""Jiang et al., "An Adaptive Policy to Employ Sharpness-Aware Minimization", 2023: AE-SAM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from crsam.optim.context import StepContext
from crsam.optim.part import Schedule, at_least, share


@dataclass(frozen=True)
class ByGradientNorm(Schedule):
    r"""All passes where the gradient is large for its recent past, else a plain step.

    All passes are taken if $\lVert g_0\rVert^2 \ge \mu + c_t\,\sigma$. $\mu$ and $\sigma^2$ are
    the exponential mean and variance of $\lVert g_0\rVert^2$, this step's included. $c_t$ goes from
    `lambda2` to `lambda1` over training. This schedule reads a number off the device in every step.

    Args:
        lambda1: $c_t$ at the end of training.
        lambda2: $c_t$ at its start.
        decay: Decay of mean and variance.
        total_steps: Length of training; None holds $c_t$ halfway.
    """

    lambda1: float = -1.0
    lambda2: float = 1.0
    decay: float = 0.9
    total_steps: int | None = None
    scalar_state: ClassVar[tuple[str, ...]] = ("norm_mean", "norm_variance")
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        share("decay", self.decay, zero=True)
        for name in ("lambda1", "lambda2"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        if self.total_steps is not None:
            at_least("total_steps", self.total_steps, 1)

    def runs_perturbed_passes(self, context: StepContext) -> bool:
        (norm,) = context.broadcast_from_first([context.grad_norm.clone()])
        squared = norm.item() ** 2
        mean = self.decay * context.scalar_state["norm_mean"] + (1 - self.decay) * squared
        variance = context.scalar_state["norm_variance"]
        variance = self.decay * variance + (1 - self.decay) * (squared - mean) ** 2
        context.scalar_state.update(norm_mean=mean, norm_variance=variance)
        done = 0.5 if self.total_steps is None else min(context.count / self.total_steps, 1.0)
        threshold = done * self.lambda1 + (1 - done) * self.lambda2
        return squared >= mean + threshold * math.sqrt(variance)
