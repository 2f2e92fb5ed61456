"""Curvature Regularized Sharpness-Aware Minimization, and the family it belongs to."""

from crsam.losses import MESA, SAF
from crsam.optim.closure import MicroBatches, PerSample
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
from crsam.optim.registry import make, methods, register
from crsam.optim.sharpness import SharpnessAware

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
    "make",
    "methods",
    "register",
]
