"""Where to probe. A new rule is its file and its name here."""

from crsam.optim.ascent.friendly import Friendly
from crsam.optim.ascent.gradient import Adaptive, Gradient
from crsam.optim.ascent.masked import DynamicMask, FisherMask
from crsam.optim.ascent.random import Random, RandomTensors
from crsam.optim.part import Ascent

__all__ = [
    "Adaptive",
    "Ascent",
    "DynamicMask",
    "FisherMask",
    "Friendly",
    "Gradient",
    "Random",
    "RandomTensors",
]
