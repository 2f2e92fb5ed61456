"""Curvature Regularized Sharpness-Aware Minimization (CR-SAM) and the SAM family, for PyTorch.

The names below are loaded at their first use (PEP 562). ``import crsam`` alone does not import
torch. ``crsam.lab`` is the laboratory: recipes, training, studies and the command line. It needs
the extra ``lab``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crsam import curvature, graph, integrations, lab, landscape, optim
    from crsam.losses import MESA, SAF
    from crsam.optim.closures import MicroBatches, PerSample
    from crsam.optim.methods import (
        AESAM,
        ASAM,
        CRSAM,
        ESAM,
        GSAM,
        RSAM,
        SAM,
        SSAM,
        WSAM,
        FriendlySAM,
        GradientNormPenalty,
        LookSAM,
    )
    from crsam.optim.optimizer import SharpnessAware
    from crsam.optim.registry import make, methods, register

__version__ = "0.1.0"

__all__ = [
    "AESAM",
    "ASAM",
    "CRSAM",
    "ESAM",
    "GSAM",
    "MESA",
    "RSAM",
    "SAF",
    "SAM",
    "SSAM",
    "WSAM",
    "FriendlySAM",
    "GradientNormPenalty",
    "LookSAM",
    "MicroBatches",
    "PerSample",
    "SharpnessAware",
    "curvature",
    "graph",
    "integrations",
    "lab",
    "landscape",
    "make",
    "methods",
    "optim",
    "register",
]

_PACKAGES = ("curvature", "graph", "integrations", "lab", "landscape", "optim")
_MODULE_OF = {
    "MESA": "crsam.losses",
    "SAF": "crsam.losses",
    "MicroBatches": "crsam.optim.closures",
    "PerSample": "crsam.optim.closures",
    "SharpnessAware": "crsam.optim.optimizer",
    "make": "crsam.optim.registry",
    "methods": "crsam.optim.registry",
    "register": "crsam.optim.registry",
}
"""Where a name comes from. Every other name is a method's class."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'crsam' has no attribute {name!r}")
    if name in _PACKAGES:
        return import_module(f"crsam.{name}")
    value = getattr(import_module(_MODULE_OF.get(name, "crsam.optim.methods")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
