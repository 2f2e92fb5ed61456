"""The parts that methods of the SAM family are made of, and the optimizer that runs them."""

from crsam.optim import ascent as _ascent
from crsam.optim import objective as _objective
from crsam.optim import schedule as _schedule
from crsam.optim.ascent import *
from crsam.optim.captured import Captured
from crsam.optim.functional import Functional
from crsam.optim.objective import *
from crsam.optim.probe import ClosureProbe, Evaluation, Offset, Probe
from crsam.optim.radius import FollowLearningRate
from crsam.optim.schedule import *
from crsam.optim.sharpness import SharpnessAware
from crsam.optim.step import Step

__all__ = [
    "Captured",
    "ClosureProbe",
    "Evaluation",
    "FollowLearningRate",
    "Functional",
    "Offset",
    "Probe",
    "SharpnessAware",
    "Step",
]
__all__ += _ascent.__all__
__all__ += _objective.__all__
__all__ += _schedule.__all__
