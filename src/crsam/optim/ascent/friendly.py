"""Li et al., "Friendly Sharpness-Aware Minimization", 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam import _tensors as tn
from crsam.optim.context import StepContext
from crsam.optim.part import Ascent, share
from crsam.optim.probe import Evaluation, Offset, Probe


@dataclass(frozen=True)
class Friendly(Ascent):
    r"""Along the batch's own noise: $e = \rho\, d/\lVert d \rVert$, $d = g_0 - \sigma m$.

    $m$ is the exponential mean of $g_0$, this step's included, and starts at 0.

    Args:
        rho: Length of the offset.
        sigma: How much of the mean gradient is taken out.
        decay: Decay of the mean.
    """

    rho: float = 0.05
    sigma: float = 1.0
    decay: float = 0.9
    group_options: ClassVar[tuple[str, ...]] = ("rho", "sigma")
    tensor_state: ClassVar[tuple[str, ...]] = ("mean_gradient",)

    def __post_init__(self) -> None:
        super().__post_init__()
        share("decay", self.decay, zero=True)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        mean = tn.scale_(tn.clone(center.grads), 1 - self.decay)
        past = context.recall("mean_gradient")
        if past is not None:
            tn.add_(mean, past, self.decay)
        context.keep("mean_gradient", mean)
        direction = tn.scale_(tn.scale_(tn.clone(mean), context.option("sigma")), -1.0)
        tn.add_(direction, center.grads)
        return Offset(direction, context.radius_over(tn.norm(direction)))
