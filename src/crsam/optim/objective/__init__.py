"""What to follow: one file a rule. A new rule is its file and its name here."""

from crsam.optim.objective.base import Objective
from crsam.optim.objective.curvature import Curvature
from crsam.optim.objective.gradient_norm import GradientNorm
from crsam.optim.objective.surrogate_gap import SurrogateGap
from crsam.optim.objective.weighted import Weighted
from crsam.optim.objective.worst_case import WorstCase

__all__ = ["Curvature", "GradientNorm", "Objective", "SurrogateGap", "Weighted", "WorstCase"]
