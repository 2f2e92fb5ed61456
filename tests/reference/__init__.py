"""Textbook twins: slow, plain optimizers, one per method, that the library is held against.

They share no line with the library and are written from the equations alone.
"""

from __future__ import annotations

from .aesam import AESAM
from .crsam import CRSAM
from .esam import ESAM
from .friendlysam import FriendlySAM
from .gradientnormpenalty import GradientNormPenalty
from .gsam import GSAM
from .looksam import LookSAM
from .rsam import RSAM
from .sam import ASAM, SAM
from .ssam import SSAM
from .twin import Twin
from .wsam import WSAM

TWINS: dict[str, type[Twin]] = {
    "sam": SAM,
    "asam": ASAM,
    "rsam": RSAM,
    "gsam": GSAM,
    "gradientnormpenalty": GradientNormPenalty,
    "esam": ESAM,
    "looksam": LookSAM,
    "ssam": SSAM,
    "aesam": AESAM,
    "friendlysam": FriendlySAM,
    "wsam": WSAM,
    "crsam": CRSAM,
}

__all__ = ["TWINS", "Twin"]
