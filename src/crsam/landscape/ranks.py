"""The points of a landscape split over the processes of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.landscape.grid import Array

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Group = Optional["ProcessGroup"]
"""None: this process does it all."""


class Ranks:
    """The processes that share the points; alone without a group."""

    def __init__(self, group: Group, device: torch.device, fingerprint: str) -> None:
        self.group, self.rank, self.size = group, 0, 1
        if group is None:
            return
        dist = torch.distributed
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        mine = float(int(fingerprint[:12], 16))  # exact in float64
        bounds = torch.tensor([mine, -mine], dtype=torch.float64, device=self.device)
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=group)
        if bounds[0] != -bounds[1]:
            raise UserError(
                "the ranks do not have the same weights, directions and batches: each must have "
                "all of them (the points are split, not the data)"
            )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        if self.group is not None:
            torch.distributed.barrier(self.group)

    def shared(
        self, mine: Tensor | None, width: int, stop: bool
    ) -> tuple[bool, list[tuple[Array, Array]]]:
        """Whether any rank is to stop, and losses and accuracies that each rank has found."""
        if self.group is None:
            assert mine is not None
            return stop, [(mine[0].numpy(), mine[1].numpy())]
        table = torch.zeros(self.size, 2 * width + 1, dtype=torch.float64)
        table[self.rank, -1] = float(stop)
        if mine is not None:
            table[self.rank, :-1].view(2, width)[:, : mine.shape[1]] = mine
        table = table.to(self.device)
        torch.distributed.all_reduce(table, group=self.group)
        table = table.cpu()
        found = table[:, :-1].view(self.size, 2, width).numpy()
        return bool(table[:, -1].any()), [(losses, right) for losses, right in found]
