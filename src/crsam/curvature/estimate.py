"""Means over independent random vectors: their error, and their split over processes."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch
from torch import Tensor

from crsam.curvature.mean_loss import MeanLoss
from crsam.errors import UserError
from crsam.progress import Advance, bar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Group = Optional["ProcessGroup"]
"""The processes that share the work. None: this process does all of it."""


class Estimate(NamedTuple):
    """The mean of independent samples and its standard error."""

    value: float
    stderr: float
    """The standard error: about 95 % of all estimates are within two of it of the truth."""

    @classmethod
    def of(cls, samples: Tensor) -> Estimate:
        """The mean of `samples`. Fewer than two of them have no standard error, but NaN.

        Example:
            >>> import torch
            >>> Estimate.of(torch.tensor([1.0, 2.0, 3.0, 2.0], dtype=torch.float64)).value
            2.0
        """
        count = len(samples)
        stderr = (samples.std() / math.sqrt(count)).item() if count > 1 else math.nan
        return cls(samples.mean().item(), stderr)


@dataclass(frozen=True)
class Ranks:
    """Splits random vectors over the ranks of a group.

    All ranks must have the same weights and read all the data.
    """

    group: Group = None

    def share(self, count: int) -> range:
        """The numbers, of `count` vectors, that this rank evaluates."""
        if self.group is None:
            return range(count)
        dist = torch.distributed
        return range(dist.get_rank(self.group), count, dist.get_world_size(self.group))

    def collect_(self, results: Tensor) -> Tensor:
        """Fills in, in place, the results of the other ranks, which are 0 here."""
        if self.group is not None:
            torch.distributed.all_reduce(results, group=self.group)
        return results

    def first(self, number: Tensor) -> float:
        """The number that the first rank has."""
        mine = number if 0 in self.share(1) else torch.zeros_like(number)
        return self.collect_(mine.clone()).item()

    def check_same(self, loss: MeanLoss) -> None:
        """Compares the mean losses of the ranks. This costs one forward pass over the data.

        Raises:
            UserError: On every rank, if the losses differ.
        """
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


def progress_bar(label: str, total: int, wanted: bool) -> AbstractContextManager[Advance]:
    """A progress bar on a terminal, if it is wanted and the number of steps is known (not 0)."""
    return bar(label, total, shown=None if wanted and total > 0 else False)
