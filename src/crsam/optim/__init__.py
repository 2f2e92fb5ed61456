"""The parts that methods of the SAM family are made of, and the optimizer that runs them."""

from crsam.optim import ascent as _ascent
from crsam.optim import objective as _objective
from crsam.optim import schedule as _schedule
from crsam.optim.ascent import *
from crsam.optim.context import StepContext
from crsam.optim.functional import Functional
from crsam.optim.group_options import FollowLearningRate
from crsam.optim.objective import *
from crsam.optim.optimizer import SharpnessAware
from crsam.optim.probe import ClosureProbe, Evaluation, Offset, Probe
from crsam.optim.schedule import *

__all__ = [
    "ClosureProbe",
    "Evaluation",
    "FollowLearningRate",
    "Functional",
    "Offset",
    "Probe",
    "SharpnessAware",
    "StepContext",
]
__all__ += _ascent.__all__
__all__ += _objective.__all__
__all__ += _schedule.__all__
