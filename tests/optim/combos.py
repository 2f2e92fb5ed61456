"""Every optimizer the battery is run over: named methods, and all combinations of parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

import crsam
from crsam.optim import (
    Ascent,
    ByGradientNorm,
    Curvature,
    DynamicMask,
    EveryK,
    FisherMask,
    Objective,
    Schedule,
    Weighted,
)

Maker = Callable[..., crsam.SharpnessAware]

# Settings under which a few steps reach every branch; a part not named here is taken as it comes.
FEW_STEPS: dict[type, dict[str, Any]] = {
    FisherMask: {"period": 2, "num_samples": 3},
    DynamicMask: {"period": 2},
    EveryK: {"k": 2},
    ByGradientNorm: {"decay": 0.5, "lambda1": 0.0, "lambda2": 0.0},
}
NAMED: dict[str, dict[str, Any]] = {
    "gsam": {"lr_max": 0.1},
    "looksam": {"k": 2},
    "ssam": {"period": 2},
    "aesam": {"decay": 0.5, "lambda1": 0.0, "lambda2": 0.0},
    "crsam": {"warmup": 3},
}


def instances(kind: type[Any]) -> list[Any]:
    return [cls(**FEW_STEPS.get(cls, {})) for cls in kind.registered.values()]


def named_methods() -> dict[str, Maker]:
    def maker(name: str, **hyper: Any) -> Maker:
        def make(base: Optimizer, **options: Any) -> crsam.SharpnessAware:
            return crsam.make(name, base, **{**hyper, **options})

        return make

    makers = {name: maker(name, **NAMED.get(name, {})) for name in crsam.methods()}
    makers["ssam-fisher"] = maker("ssam", mask="fisher", period=2, num_samples=3)
    makers["crsam-linear"] = maker("crsam", form="linear", alpha=0.5, beta=0.1, warmup=0)
    makers["crsam-every"] = maker("crsam", every=2, warmup=3)
    makers["crsam-random"] = maker("crsam", direction="random", warmup=0)
    makers["wsam-decoupled"] = maker("wsam", decoupled=True, gamma=0.6)
    return makers


def combinations() -> dict[str, Maker]:
    """All legal triples of registered parts: a new part is in them as soon as it is registered."""

    def maker(ascent: Ascent, objective: Objective, schedule: Schedule) -> Maker:
        def make(base: Optimizer, **options: Any) -> crsam.SharpnessAware:
            return crsam.SharpnessAware(base, ascent, objective, schedule, **options)

        return make

    parts = itertools.product(
        instances(Ascent),
        [*instances(Objective), Weighted(0.6, decoupled=True), Curvature(0.5, 0.1, form="linear")],
        instances(Schedule),
    )
    return {
        f"{type(a).__name__}-{type(o).__name__}{i}-{type(s).__name__}": maker(a, o, s)
        for i, (a, o, s) in enumerate(parts)
        if s.refuses(o) is None
    }


METHODS = named_methods()
COMBINATIONS = combinations()
ALL = {**METHODS, **COMBINATIONS}
