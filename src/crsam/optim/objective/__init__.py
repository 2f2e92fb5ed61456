"""What to follow. A new rule is its file and its name here."""

from crsam.optim.objective.curvature import Curvature
from crsam.optim.objective.two_passes import GradientNorm, SurrogateGap, Weighted, WorstCase
from crsam.optim.part import Objective

__all__ = ["Curvature", "GradientNorm", "Objective", "SurrogateGap", "Weighted", "WorstCase"]
