"""The names people know: each a choice of ascent, objective and schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from torch import nn
from torch.optim import Optimizer

from crsam._arguments import arguments
from crsam.distributed import Scope
from crsam.optim.ascent import (
    Adaptive,
    DynamicMask,
    FisherMask,
    Friendly,
    Gradient,
    Random,
    RandomTensors,
)
from crsam.optim.group_options import FollowLearningRate
from crsam.optim.objective import Curvature, GradientNorm, SurrogateGap, Weighted
from crsam.optim.optimizer import SharpnessAware
from crsam.optim.part import non_negative, one_of, share
from crsam.optim.schedule import ByGradientNorm, EveryK, PartOfBatch
from crsam.optim.validate import check_call, is_ours


class Options(TypedDict, total=False):
    """What every method takes beside its own arguments; see `SharpnessAware`."""

    max_norm: float | None
    model: nn.Module | None
    seed: int
    scope: Scope
    group: Any


class Common(Options, total=False):
    """The same, with the warm-up, for methods that have none by default."""

    warmup: int


_OF_A_SAM_PY = {
    "first_step": "one opt.step(closure) takes both steps",
    "second_step": "one opt.step(closure) takes both steps",
    "base_optimizer": "it is opt.base",
}


class Method(SharpnessAware):
    """A choice of the three that has a name; whoever uses it like a sam.py is told how instead."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if is_ours(cls):
            check_call(cls, args, options)
        return super().__new__(cls)

    def _instead(self, name: str, value: Any) -> str | None:
        if instead := super()._instead(name, value):
            return instead
        if name not in vars(self) and is_ours(type(self)) and name in arguments(type(self)):
            return (
                f"{name} is read when a {type(self).__name__} is made: what became of it is in the "
                "parameter groups, in opt.ascent, opt.objective, opt.schedule or opt.follow"
            )
        return None

    if not TYPE_CHECKING:  # to which every name would be one of ours

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                if name not in _OF_A_SAM_PY:
                    raise
                raise AttributeError(f"{error}: {_OF_A_SAM_PY[name]}") from None


class SAM(Method):
    r"""Sharpness-Aware Minimization (Foret et al., 2021).

    $\nabla L(w + \rho\,g_0/\lVert g_0\rVert)$, 2 passes. See `Gradient` and `WorstCase`.
    """

    def __init__(self, base: Optimizer, rho: float = 0.05, **common: Unpack[Common]) -> None:
        super().__init__(base, Gradient(rho), **common)


class ASAM(Method):
    """Adaptive SAM (Kwon et al., 2021): the ball scales with the weights. 2 passes.

    See `Adaptive`.
    """

    def __init__(
        self, base: Optimizer, rho: float = 0.5, eta: float = 0.01, **common: Unpack[Common]
    ) -> None:
        super().__init__(base, Adaptive(rho, eta), **common)


class RSAM(Method):
    """Random SAM (Liu et al., 2022): climbs from a random point. 2 passes, none at ``w``.

    It follows the authors' code; see `Random`. ``step`` returns the loss at the random point, which
    is also ``report["loss"]``. Batch-norm statistics move there. `total_steps` is the length of
    training, over which `sigma` rises by the factor `sigma_rise`; without it `sigma` stays. ρ
    follows the learning rate from `rho` at `lr_max` (defaults to that of the base optimizer now) to
    ``rho_share * rho`` at `lr_min`; with ``rho_share=1`` it stays.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        sigma: float = 0.0005,
        lam: float = 2.0,
        sigma_rise: float = 5.0,
        total_steps: int | None = None,
        rho_share: float = 0.6,
        lr_max: float | None = None,
        lr_min: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        share("rho_share", rho_share, zero=True)
        ascent = Random(rho, sigma, lam, sigma_rise, total_steps)
        follow = FollowLearningRate(rho_share, lr_max, lr_min, relative=True)
        super().__init__(base, ascent, follow=follow, **common)


class GSAM(Method):
    """Surrogate-gap SAM (Zhuang et al., 2022): also closes the gap to the worst case. 2 passes.

    ρ follows the learning rate from `rho` at `lr_max` (None: that of the base optimizer now) to
    `rho_min` at `lr_min`. See `SurrogateGap` and `FollowLearningRate`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        alpha: float = 0.4,
        rho_min: float = 0.01,
        lr_max: float | None = None,
        lr_min: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        follow = FollowLearningRate(rho_min, lr_max, lr_min)
        super().__init__(base, Gradient(rho), SurrogateGap(alpha), follow=follow, **common)


class GradientNormPenalty(Method):
    """Gradient-norm penalty (Zhao et al., 2022): ``(1 − α) g0 + α g+``. 2 passes.

    See `GradientNorm`.
    """

    def __init__(
        self, base: Optimizer, rho: float = 0.1, alpha: float = 0.8, **common: Unpack[Common]
    ) -> None:
        super().__init__(base, Gradient(rho), GradientNorm(alpha), **common)


class ESAM(Method):
    """Efficient SAM (Du et al., 2022): some tensors, some samples. 1 pass, a forward, part of one.

    `beta` is the share of the tensors that are moved, `gamma` that of the samples whose gradient is
    taken. Needs a `PerSample` closure. See `RandomTensors` and `PartOfBatch`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        beta: float = 0.5,
        gamma: float = 0.5,
        **common: Unpack[Common],
    ) -> None:
        share("beta", beta)
        share("gamma", gamma)
        super().__init__(base, RandomTensors(rho, beta), schedule=PartOfBatch(gamma), **common)


class LookSAM(Method):
    """LookSAM (Liu et al., 2022): SAM at every `k`-th step, its effect reused between.

    1 + 1/k passes. `alpha` weighs what is reused (``reuse`` in the parameter groups). See `EveryK`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        k: int = 10,
        alpha: float = 0.7,
        **common: Unpack[Common],
    ) -> None:
        non_negative("alpha", alpha)
        super().__init__(base, Gradient(rho), schedule=EveryK(k, alpha), **common)


class SSAM(Method):
    """Sparse SAM (Mi et al., 2022): moves only the weights in a mask. 2 passes.

    ``mask="dynamic"`` drops by gradient and regrows at random (`drop`, `total_steps`);
    ``mask="fisher"`` keeps the weights with the largest Fisher information on `num_samples` samples
    and needs a `PerSample` closure. See `DynamicMask` and `FisherMask`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        sparsity: float = 0.5,
        mask: Literal["dynamic", "fisher"] = "dynamic",
        period: int = 100,
        num_samples: int = 16,
        drop: float = 0.5,
        total_steps: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        one_of("mask", mask, ("dynamic", "fisher"))
        ascent = (
            FisherMask(rho, sparsity, period, num_samples)
            if mask == "fisher"
            else DynamicMask(rho, sparsity, period, drop, total_steps)
        )
        super().__init__(base, ascent, **common)


class AESAM(Method):
    """Adaptive-policy SAM (Jiang et al., 2023): SAM where the gradient is large. 1 or 2 passes.

    See `ByGradientNorm`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        lambda1: float = -1.0,
        lambda2: float = 1.0,
        decay: float = 0.9,
        total_steps: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        schedule = ByGradientNorm(lambda1, lambda2, decay, total_steps)
        super().__init__(base, Gradient(rho), schedule=schedule, **common)


class FriendlySAM(Method):
    """Friendly SAM (Li et al., 2024): climbs along the batch's own noise. 2 passes.

    See `Friendly`.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        sigma: float = 1.0,
        decay: float = 0.9,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(base, Friendly(rho, sigma, decay), **common)


class WSAM(Method):
    """Weighted SAM (Yue et al., 2023): sharpness as a weighted regulariser. 2 passes.

    See `Weighted`. `max_norm` bounds what the base follows, which the decoupled part is not.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        gamma: float = 0.9,
        decoupled: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(base, Gradient(rho), Weighted(gamma, decoupled), **common)


class CRSAM(Method):
    r"""Curvature-regularised SAM (Wu, Luo and Wunsch, AAAI 2024). 3 passes; 2 + 1/`every`.

    $g_+ + \alpha D_2/d_2 + \beta D_1/d_1$ (``form="log"``, the paper) or
    $g_+ + \alpha D_2 + \beta D_1$ (``form="linear"``, the authors' code), with the differences of
    gradients and losses at $w \pm \rho\,g_0/\lVert g_0\rVert$; see `Curvature`. Near the initial
    saddle a fixed ρ is larger than the slope it climbs, so ρ rises over the first `warmup` steps.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.1,
        alpha: float = 0.1,
        beta: float = 0.01,
        form: Literal["log", "linear"] = "log",
        trust: float | None = 0.1,
        warmup: int = 200,
        direction: Literal["gradient", "random"] = "gradient",
        floor: float | None = None,
        every: int = 1,
        **options: Unpack[Options],
    ) -> None:
        objective = Curvature(alpha, beta, form, trust, direction, floor, every)
        super().__init__(base, Gradient(rho), objective, warmup=warmup, **options)


METHODS: dict[str, type[SharpnessAware]] = {
    method.__name__.lower(): method
    for method in (
        CRSAM, SAM, ASAM, RSAM, GSAM, GradientNormPenalty, ESAM, LookSAM, SSAM, AESAM, FriendlySAM,
        WSAM,
    )
}  # fmt: skip
"""By the names that `make` takes."""
