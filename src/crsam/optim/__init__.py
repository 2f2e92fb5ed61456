"""The parts that methods of the SAM family are made of, and the optimizer that runs them."""

from crsam.optim.ascent import *
from crsam.optim.objective import *
from crsam.optim.probe import ClosureProbe as ClosureProbe
from crsam.optim.probe import Evaluation as Evaluation
from crsam.optim.probe import Offset as Offset
from crsam.optim.probe import Probe as Probe
from crsam.optim.radius import FollowLearningRate as FollowLearningRate
from crsam.optim.schedule import *
from crsam.optim.sharpness import SharpnessAware as SharpnessAware
from crsam.optim.step import Step as Step
