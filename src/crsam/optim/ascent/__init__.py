"""Where to probe: one file a rule. A new rule is its file and its name here."""

from crsam.optim.ascent.adaptive import Adaptive
from crsam.optim.ascent.base import Ascent
from crsam.optim.ascent.dynamic_mask import DynamicMask
from crsam.optim.ascent.fisher_mask import FisherMask
from crsam.optim.ascent.friendly import Friendly
from crsam.optim.ascent.gradient import Gradient
from crsam.optim.ascent.random import Random
from crsam.optim.ascent.random_tensors import RandomTensors

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
