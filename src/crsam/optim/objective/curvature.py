"""Wu, Luo and Wunsch, "CR-SAM: Curvature Regularized Sharpness-Aware Minimization", AAAI 2024."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors
from crsam.optim.context import StepContext, times
from crsam.optim.part import Objective, at_least, non_negative, one_of
from crsam.optim.probe import Evaluation, Offset


@dataclass(frozen=True)
class Curvature(Objective):
    r"""The worst case plus a penalty on curvature and slope along the offset: $g_+ + \nabla R_c$.

    With $g_\pm, L_\pm$ gradient and loss at $w \pm e$, and the differences
    $D_1 = g_+ - g_-$, $D_2 = g_+ + g_- - 2 g_0$, $d_1 = L_+ - L_-$, $d_2 = L_+ + L_- - 2 L_0$:

    - ``form="log"``, the paper (its equation for $R_c$ by finite differences):
      $\nabla R_c = \alpha D_2/d_2 + \beta D_1/d_1$, of $R_c = \alpha \log d_2 + \beta \log d_1$;
    - ``form="linear"``, the authors' code: $\nabla R_c = \alpha D_2 + \beta D_1$.

    Taken literally, the log form does not train: $d_2$ is small and now and then negative. So a
    term whose difference is not safely positive is dropped, and $\nabla R_c$ is scaled down to
    $\lVert\nabla R_c\rVert \le \mathrm{trust}\cdot\lVert g_+\rVert$. What was dropped or scaled is
    in the report (``dropped_curvature``, ``dropped_slope``, ``trust_scale``), as is the ratio of
    the two norms before (``regularizer``).

    Two passes beside the first; three with ``direction="random"``. With ``every=k`` the passes that
    only $\nabla R_c$ needs are taken at every $k$-th step, and in between the last $\nabla R_c$ is
    used again, in proportion to $\lVert g_+\rVert$: $2 + 1/k$ passes a step, or $2 + 2/k$ along a
    random direction. In the log form, and to orient a random direction, $d_1$ and $d_2$ are
    averaged over all ranks, as the gradients are.

    Args:
        alpha: Weight of the curvature term.
        beta: Weight of the slope term; the paper asks for ``alpha > beta > 0``.
        form: ``"log"`` or ``"linear"``.
        trust: The bound; None for the form as written.
        direction: ``"gradient"``: along the ascent's offset. ``"random"``: along a random direction
            of that length, drawn at every step (the expectation in the paper's $R_c$), while $g_+$
            stays the worst case; the direction is oriented so that $d_1 \ge 0$.
        floor: How large a difference must be to count as positive, in units of the loss. None: 8
            times the rounding error of the loss's dtype, or of the weights' where that has fewer
            bits, but no fewer than float32. Where the net computes in fewer bits than these, say so
            here: 1e-3 for bfloat16, 1e-4 for float16 and TF32.
        every: Steps from one look at the curvature to the next; 1: all.
    """

    alpha: float = 0.1
    beta: float = 0.01
    form: Literal["log", "linear"] = "log"
    trust: float | None = 0.1
    direction: Literal["gradient", "random"] = "gradient"
    floor: float | None = None
    every: int = 1
    group_options: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("form", self.form, ("log", "linear"))
        one_of("direction", self.direction, ("gradient", "random"))
        at_least("every", self.every, 1)
        object.__setattr__(self, "tensor_state", ("regularizer",) if self.every > 1 else ())
        for name in ("trust", "floor"):
            if getattr(self, name) is not None:
                non_negative(name, getattr(self, name))
        if (self.alpha == self.beta and self.form == "linear" and self.direction == "gradient") or (
            self.alpha == 0 and self.beta == 0
        ):
            warnings.warn(
                f"with alpha = beta = {self.alpha} the pass at w - e has weight 0: it is paid for "
                "nothing. Use alpha > beta, or a method of two passes (SAM, GradientNormPenalty)",
                stacklevel=4,
            )

    def plan(self, count: int) -> bool:
        """Returns whether the step after `count` steps takes the passes of the curvature."""
        return count % self.every == 0

    def points(self, context: StepContext, offset: Offset) -> list[Offset]:
        if not self.plan(context.count) and context.has("regularizer"):
            return [offset]
        offset = offset.measured()
        if self.direction == "gradient":
            return [offset, -offset]
        v = context.draw(torch.randn, stream=1)
        random = Offset(v, offset.length() * tn.safe_reciprocal(tn.norm(v)))
        return [offset, random, -random]

    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        plus = values[0]
        if len(values) == 1:
            kept = context.recall("regularizer")
            assert kept is not None
            return _added(plus.grads, tn.clone(kept), tn.norm(plus.grads))
        up, down = values[-2:]
        d_1, d_2 = _differences(center.loss, up.loss, down.loss).unbind()
        loss = center.loss
        if self.form == "log" or self.direction == "random":
            # They weigh gradients of the whole batch, so they must be those of the whole batch.
            d_1, d_2, loss = context.ranks.mean(d_1, d_2, loss)
        assert plus.offset is not None
        context.report["loss_minus"] = down.loss
        context.report["curvature"] = _per_square(d_2, plus.offset.length())

        alpha, beta = context.option("alpha"), context.option("beta")
        if self.direction == "random":
            sign = torch.where(d_1 < 0, -1.0, 1.0).to(d_1.dtype)
            beta, d_1 = times(beta, sign), d_1 * sign
        floor = None if self.form == "linear" else self._floor(context, center)
        regularizer, dropped = cr_regularizer(
            center.grads, up.grads, down.grads, d_1, d_2, loss, alpha, beta, floor
        )
        context.report |= dropped
        scale: Tensor | float = 1.0
        if self.trust is not None:
            theirs = tn.norms(plus.grads) if plus.norms is None else plus.norms
            ours = tn.norms(regularizer)
            scale, context.report["regularizer"] = _bounded(ours, theirs, self.trust)
            context.report["trust_scale"] = scale
        if self.every > 1:
            share = tn.safe_reciprocal(tn.norm(plus.grads)) * scale
            context.keep("regularizer", tn.scale_(tn.clone(regularizer), share))
        return _added(plus.grads, regularizer, scale)

    def _floor(self, context: StepContext, center: Evaluation) -> float:
        """Returns how large a difference of losses must be, as a share of the loss."""
        if self.floor is not None:
            return self.floor
        # A loss may come in more bits than it was computed in.
        dtypes = {torch.promote_types(dtype, torch.float32) for dtype in context.dtypes}
        return 8 * max([center.rounding, *(torch.finfo(dtype).eps for dtype in dtypes)])


def cr_regularizer(
    g_0: Tensors,
    g_plus: Tensors,
    g_minus: Tensors,
    d_1: Tensor,
    d_2: Tensor,
    loss: Tensor,
    alpha: Scale,
    beta: Scale,
    floor: float | None,
) -> tuple[Tensors, dict[str, Tensor]]:
    r"""Returns $\nabla R_c$, and which of its terms were dropped.

    The log form is $\alpha D_2/d_2 + \beta D_1/d_1$. The linear form is
    $\alpha D_2 + \beta D_1$. `g_0` and `g_minus` are overwritten.

    Args:
        g_0: The gradient at ``w``.
        g_plus: The gradient at ``w + e``.
        g_minus: The gradient at ``w − e``.
        d_1: ``L+ − L-``.
        d_2: ``L+ + L- − 2 L0``.
        loss: ``L0``.
        alpha: Weight of the curvature term.
        beta: Weight of the slope term.
        floor: The log form drops a term whose difference is not above ``floor·|L0|``. None is the
            linear form.
    """
    if floor is None:
        return _weighed(g_0, g_plus, g_minus, times(alpha, -2.0), times(beta, -1.0)), {}
    minus_two, minus_one, dropped_2, dropped_1 = _guarded(d_1, d_2, loss, floor).unbind()
    weights = times(alpha, minus_two), times(beta, minus_one)
    dropped = {"dropped_curvature": dropped_2, "dropped_slope": dropped_1}
    return _weighed(g_0, g_plus, g_minus, *weights), dropped


# Of numbers that are given back as one tensor, the compiler makes one kernel.
@tn.fused
def _differences(center: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``d_1`` and ``d_2``."""
    return torch.stack([up - down, (up - center) + (down - center)])


@tn.fused
def _per_square(difference: Tensor, length: Tensor) -> Tensor:
    return difference * tn.safe_reciprocal(length.square())


@tn.fused
def _guarded(d_1: Tensor, d_2: Tensor, loss: Tensor, floor: float) -> Tensor:
    """Returns ``−2/d_2`` and ``−1/d_1``, or 0 for a difference that is not safely positive.

    Then come two flags: 1 where the difference was not.
    """
    d = torch.stack([d_2, d_1])
    is_small = ~(d > floor * loss.abs())
    two, one = torch.where(is_small, torch.zeros_like(d), -1.0 / d).unbind()
    return torch.stack([2.0 * two, one, *is_small.to(d.dtype).unbind()])


@tn.fused
def _bounded(ours: Tensor, theirs: Tensor, trust: float) -> tuple[Tensor, Tensor]:
    """Returns the factor that keeps a norm at or below `trust` times another, and their ratio.

    Args:
        ours: The norms of the tensors that are scaled.
        theirs: The norms of the tensors that they are compared with.
        trust: The bound.
    """
    length = torch.linalg.vector_norm(theirs)
    ratio = torch.linalg.vector_norm(ours) * tn.safe_reciprocal(length)
    scale = torch.nan_to_num(trust / ratio, nan=1.0).clamp(max=1.0)  # 0/0: nothing to scale
    return scale * (length > 0), ratio


@tn.fused
def _weighed(g_0: Tensors, up: Tensors, down: Tensors, alpha: Scale, beta: Scale) -> Tensors:
    """``α D_2 + β D_1``, given ``−2α`` and ``−β``; `g_0` and `down` are used up.

    Each difference lies in the memory of the gradient it no longer needs, up to a factor that its
    weight makes good: no copies, and as few walks through memory as can be.
    """
    up, down = tn.as_wide_as(g_0, up), tn.as_wide_as(g_0, down)
    half_second = tn.add_(tn.add_(g_0, up, -0.5), down, -0.5)  # −D_2/2
    first = tn.add_(down, up, -1.0)  # −D_1
    return tn.add_(tn.scale_(half_second, alpha), tn.scale_(first, beta))


@tn.fused
def _added(g_plus: Tensors, regularizer: Tensors, scale: Tensor | float) -> Tensors:
    """``g_+ + scale·regularizer``; both are used up."""
    g_plus = tn.as_wide_as(regularizer, g_plus)
    if isinstance(scale, Tensor):
        regularizer = tn.scale_(regularizer, scale)
    return tn.add_(g_plus, regularizer)
