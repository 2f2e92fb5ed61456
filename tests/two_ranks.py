"""Two gloo processes that do the same job, and what each of them found."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

Job = Callable[[int, Path], dict[str, Any]]


def found_by_two_ranks(job: Job, folder: Path) -> list[dict[str, Any]]:
    """What ``job(rank, folder)`` returns in each; it must be a function of a module."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_on_rank, args=(job, r, folder)) for r in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    return already_found(folder)


def already_found(folder: Path) -> list[dict[str, Any]]:
    """What a job that had this folder has found."""
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for each in found:
        assert "failed" not in each, each["failed"]
    return found


def _on_rank(job: Job, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    try:
        found = job(rank, folder)
    except BaseException:
        found = {"failed": traceback.format_exc()}
    torch.save(found, folder / f"{rank}.pt")
    gc.collect()  # a model that outlives the process group may wait for it for ever
    dist.barrier()
    dist.destroy_process_group()
