"""When to take the perturbed passes. A new rule is its file and its name here."""

from crsam.optim.part import Schedule
from crsam.optim.schedule.by_gradient_norm import ByGradientNorm
from crsam.optim.schedule.every_k import EveryK, EveryStep
from crsam.optim.schedule.part_of_batch import PartOfBatch

__all__ = ["ByGradientNorm", "EveryK", "EveryStep", "PartOfBatch", "Schedule"]
