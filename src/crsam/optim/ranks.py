"""The processes that share a batch: what all of them must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from crsam._tensors import Tensors

BUCKET = 2**25
"""Bytes that travel in one message, at most, unless a tensor is larger."""


class Ranks:
    """The ranks of a process group, seen from one of them.

    Every method is a message that all of them must send; alone, none is sent.

    Args:
        group: A ``torch.distributed`` group; None: this process alone.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def mean(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The means over all ranks, in one message for all of them."""
        if self.size == 1:
            return values
        together = torch.stack(values)
        dist.all_reduce(together, group=self.group)
        return tuple(together / self.size)

    def mean_(self, tensors: Tensors) -> Tensors:
        """The same for whole tensors, in place and in few messages."""
        return self._reduce(tensors, 1 / self.size)

    def sum_(self, tensors: Tensors) -> Tensors:
        return self._reduce(tensors, 1.0)

    def _reduce(self, tensors: Tensors, times: float) -> Tensors:
        if self.size == 1:
            return tensors
        for bucket in self._buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket])
            dist.all_reduce(flat, group=self.group)
            flat *= times
            _scatter(flat, bucket)
        return tensors

    def firsts_(self, tensors: Tensors) -> Tensors:
        """The first rank's tensors, written over the others'."""
        for bucket in self._buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket])
            dist.broadcast(flat, group=self.group, src=dist.get_global_rank(self.group, 0))
            _scatter(flat, bucket)
        return tensors

    def gather(self, values: Tensor) -> Tensors:
        """Each rank's vector, of whatever length."""
        if self.size == 1:
            return [values]
        lengths = self.counts(len(values), values.device)
        padded = values.new_zeros(max(lengths))
        padded[: len(values)] = values
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded, group=self.group)
        return [each[:length] for each, length in zip(every, lengths)]

    def counts(self, mine: int, device: torch.device) -> list[int]:
        """Each rank's whole number; waits for the device."""
        if self.size == 1:
            return [mine]
        every = torch.zeros(self.size, dtype=torch.long, device=device)
        every[self.rank] = mine
        dist.all_reduce(every, group=self.group)
        return every.tolist()

    def _buckets(self, tensors: Sequence[Tensor]) -> list[Tensors]:
        """The tensors in runs of one dtype and device; none where nobody is to be told."""
        buckets: list[Tensors] = []
        filled, kind = 0, None
        for t in tensors if self.size > 1 else ():
            filled += t.nbytes
            if kind != (t.dtype, t.device) or filled > BUCKET:
                buckets.append([])
                filled, kind = t.nbytes, (t.dtype, t.device)
            buckets[-1].append(t)
        return buckets


def _scatter(flat: Tensor, tensors: Tensors) -> None:
    for t, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors])):
        t.copy_(part.view(t.shape))
