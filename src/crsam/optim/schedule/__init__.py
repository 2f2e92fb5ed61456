"""When to pay: one file a rule. A new rule is its file and its name here."""

from crsam.optim.schedule.base import Schedule
from crsam.optim.schedule.by_gradient_norm import ByGradientNorm
from crsam.optim.schedule.every_k import EveryK
from crsam.optim.schedule.every_step import EveryStep
from crsam.optim.schedule.part_of_batch import PartOfBatch

__all__ = ["ByGradientNorm", "EveryK", "EveryStep", "PartOfBatch", "Schedule"]
