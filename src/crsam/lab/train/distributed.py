"""Several processes with one model each, started by ``torchrun``: who am I, and what do all say."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crsam.errors import UserError


@dataclass(frozen=True)
class World:
    """The processes that train together, seen from one of them; alone by default."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Of all of them; None if alone."""
        return dist.group.WORLD if self.size > 1 else None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, with gradients averaged over all processes where there are several."""
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, mine: bool) -> bool:
        """Whether it holds in any process."""
        if self.size == 1:
            return mine
        return self.total(torch.tensor(float(mine), device=self.device)).item() > 0

    def agree(self, *models: nn.Module) -> None:
        """Gives all processes the main one's buffers: batch norm sees other images in each."""
        if self.size > 1:
            for model in models:
                for buffer in model.buffers():
                    dist.broadcast(buffer, 0)

    def union(self, mine: set[int]) -> set[int]:
        """What any of the processes has."""
        if self.size == 1:
            return mine
        each: list[set[int]] = [set()] * self.size
        dist.all_gather_object(each, mine)
        return set().union(*each)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join(device: str = "auto") -> Iterator[World]:
    """The world that ``torchrun`` describes in the environment, or this process alone.

    Args:
        device: ``"auto"``: CUDA where there is one; or what `torch.device` takes.
    """
    size, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    place = _device(device, local if size > 1 else 0)
    torch.backends.cudnn.benchmark = True  # batches are all of one size
    if size == 1:
        yield World(place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(place, dist.get_rank(), size)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # A model that outlives the process group may wait for it, or abort. Some are in cycles.
        gc.collect()
        dist.destroy_process_group()


def _device(name: str, index: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"device {name!r} was asked for, but torch sees no CUDA device")
        return torch.device("cuda", index if device.index is None else device.index)
    return device
