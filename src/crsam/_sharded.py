"""Tensors spread over processes: ``DTensor``, as FSDP2 and tensor parallelism make them.

Everything that works element by element is done on each process's own part, in the same memory.
What looks at a whole tensor (a norm, a draw, the largest entries) goes through here. Plain tensors
are their own whole and their own part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether other processes may hold parts of it."""
    module = sys.modules.get("torch.distributed.tensor")  # who has one has imported it
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This process's part of each tensor: a view that can be written to."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return list(tensors)
    kind = module.DTensor
    return [t.to_local() if isinstance(t, kind) else t for t in tensors]


def full(tensor: Tensor) -> Tensor:
    """The whole tensor, on every process."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """The whole `tensor`, which every process has, cut as `like` is."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    if not is_sharded(tensor):
        whole = [Replicate()] * mesh.ndim
        tensor = DTensor.from_local(tensor, mesh, whole, run_check=False)
    return tensor.redistribute(placements=placements)  # type: ignore[attr-defined]


def spread_along(like: Tensor, tensor: Tensor) -> Tensor:
    """`tensor`, which is `like` with some dimensions shrunk to 1, cut along the others as it is."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import Replicate

    placements = [
        Replicate() if placement.is_shard() and tensor.shape[placement.dim] == 1 else placement
        for placement in like.placements  # type: ignore[attr-defined]
    ]
    return tensor.redistribute(placements=placements)  # type: ignore[attr-defined]


def sum_over_parts(values: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """One value a tensor, each summed over the processes that hold parts of that tensor.

    One message for each dimension of a mesh, whatever the number of tensors.
    """
    where: dict[tuple[Any, int], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if is_sharded(tensor):
            for dim, placement in enumerate(tensor.placements):  # type: ignore[attr-defined]
                assert not placement.is_partial(), "a sum that was never taken"
                if not placement.is_replicate():
                    where.setdefault((tensor.device_mesh, dim), []).append(i)  # type: ignore[attr-defined]
    for (mesh, dim), positions in where.items():
        of_all = len(positions) == len(tensors)
        some = values.contiguous() if of_all else values[positions]
        torch.distributed.all_reduce(some, group=mesh.get_group(dim))
        if of_all:
            values = some
        else:
            values[positions] = some
    return values
