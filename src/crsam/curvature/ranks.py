"""Independent draws split over the processes of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor

from crsam.curvature.mean_loss import MeanLoss
from crsam.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Group = Optional["ProcessGroup"]
"""None: this process does it all."""


@dataclass(frozen=True)
class Ranks:
    """Who draws what. All ranks must have the same weights and go over all the data."""

    group: Group = None

    def share(self, count: int) -> range:
        """Which of `count` draws are this rank's."""
        if self.group is None:
            return range(count)
        dist = torch.distributed
        return range(dist.get_rank(self.group), count, dist.get_world_size(self.group))

    def collect_(self, draws: Tensor) -> Tensor:
        """Fills in, in place, the draws of the other ranks, which are 0 here."""
        if self.group is not None:
            torch.distributed.all_reduce(draws, group=self.group)
        return draws

    def first(self, number: Tensor) -> float:
        """The number as the first rank has it."""
        mine = number if 0 in self.share(1) else torch.zeros_like(number)
        return self.collect_(mine.clone()).item()

    def check_same(self, loss: MeanLoss) -> None:
        """Raises on every rank if the loss is not the same on all: one forward pass."""
        if self.group is None:
            return
        value = loss.value()
        bounds = torch.tensor([value, -value], dtype=torch.float64, device=loss.device)
        torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX, group=self.group)
        highest, lowest = bounds[0].item(), -bounds[1].item()
        if highest - lowest > 1e-4 * max(abs(highest), abs(lowest)):
            raise UserError(
                f"the ranks see losses from {lowest:.6g} to {highest:.6g}: each must have the same "
                "weights and go over all the data (the draws are split, not the data)"
            )
