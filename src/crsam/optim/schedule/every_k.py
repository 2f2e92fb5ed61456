"""Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", 2022: LookSAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.objective.base import Objective
from crsam.optim.objective.weighted import Weighted
from crsam.optim.part import at_least
from crsam.optim.schedule.base import Schedule
from crsam.optim.step import Step


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
    hyper: ClassVar[tuple[str, ...]] = ("reuse",)
    memory: ClassVar[tuple[str, ...]] = ("reused",)

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

    def pays(self, step: Step) -> bool:
        return step.count % self.k == 0

    def paid(self, step: Step, g_0: Tensors, surrogate: Tensors) -> Tensors:
        if g_0:
            # A surrogate along g0 leaves nothing but rounding errors: no direction to reuse.
            tiny = 8 * max(torch.finfo(g.dtype).eps for g in g_0) * step.grad_norm
            inverse = tn.safe_reciprocal(step.grad_norm)
            along = tn.dot(surrogate, g_0) * inverse * inverse  # the square itself may overflow
            kept = tn.add_(tn.scale_(g_0, -along), surrogate)
            step.keep("reused", tn.scale_(kept, torch.where(tn.norm(kept) > tiny, 1.0, 0.0)))
        return surrogate

    def unpaid(self, step: Step, g_0: Tensors) -> Tensors:
        kept = step.recall("reused")
        if kept is None:
            return g_0
        ratio = step.grad_norm * tn.safe_reciprocal(tn.norm(kept))
        reused = tn.scale_(tn.scale_(tn.clone(kept), ratio), step.hyper("reuse"))
        return tn.add_(reused, g_0)
