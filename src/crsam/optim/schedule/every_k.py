"""All passes in every step, or in every k-th step as in LookSAM.

Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", 2022: LookSAM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.context import StepContext
from crsam.optim.objective.two_passes import Weighted
from crsam.optim.part import Objective, Schedule, at_least


@dataclass(frozen=True)
class EveryStep(Schedule):
    """All passes at every step."""

    needs_center: ClassVar[bool] = False


@dataclass(frozen=True)
class EveryK(Schedule):
    r"""All passes at every $k$-th step; between them, what the last of those added is used again.

    At a $k$-th step the surrogate $s$ is followed and its part across the gradient,
    $g_v = s - (\langle s, g_0\rangle/\lVert g_0\rVert^2)\, g_0$, kept; at others
    $g_0 + \mathrm{reuse}\,(\lVert g_0\rVert/\lVert g_v\rVert)\, g_v$ is followed.

    Args:
        k: Steps from one full step to the next; the first is one.
        reuse: Weight of the kept part; 0 keeps nothing and steps with $g_0$ in between.
    """

    k: int = 5
    reuse: float = 0.7
    group_options: ClassVar[tuple[str, ...]] = ("reuse",)
    tensor_state: ClassVar[tuple[str, ...]] = ("reused",)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("k", self.k, 1)

    def refuses(self, objective: Objective) -> str | None:
        if isinstance(objective, Weighted) and objective.decoupled:
            return (
                "EveryK reuses the surrogate gradient, and the decoupled Weighted objective steps "
                "with the plain gradient: use Weighted(decoupled=False)"
            )
        return None

    def check(self, name: str, value: Any) -> None:
        super().check(name, value)
        if name == "reuse" and value and not self.reuse:
            raise ValueError(
                "a group cannot reuse what is not kept: let the method's own be above 0"
            )

    @property
    def reuses(self) -> bool:
        return self.reuse != 0

    def runs_perturbed_passes(self, context: StepContext) -> bool:
        return context.count % self.k == 0

    def after_full_step(self, context: StepContext, g_0: Tensors, surrogate: Tensors) -> Tensors:
        if g_0:
            # A surrogate along g0 leaves nothing but rounding errors: no direction to reuse.
            tiny = 8 * max(torch.finfo(g.dtype).eps for g in g_0) * context.grad_norm
            inverse = tn.safe_reciprocal(context.grad_norm)
            along = tn.dot(surrogate, g_0) * inverse * inverse  # the square itself may overflow
            kept = tn.add_(tn.scale_(g_0, -along), surrogate)
            context.keep("reused", tn.scale_(kept, torch.where(tn.norm(kept) > tiny, 1.0, 0.0)))
        return surrogate

    def after_cheap_step(self, context: StepContext, g_0: Tensors) -> Tensors:
        kept = context.recall("reused")
        if kept is None:
            return g_0
        ratio = context.grad_norm * tn.safe_reciprocal(tn.norm(kept))
        reused = tn.scale_(tn.scale_(tn.clone(kept), ratio), context.option("reuse"))
        return tn.add_(reused, g_0)
