"""A small problem in float64 that one process, two replicas and two shards solve alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam
from optim.combos import METHODS

NUM_STEPS = 4
BATCH = 16
"""Samples over all processes."""


def net(dtype: torch.dtype = torch.float64, width: int = 7) -> nn.Sequential:
    """Sizes that two processes cannot share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)


def batches(
    num: int = NUM_STEPS, dtype: torch.dtype = torch.float64
) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    found = []
    for _ in range(num):
        y = torch.randint(3, (BATCH,), generator=g)
        x = torch.randn(BATCH, 5, generator=g, dtype=torch.float64) + y[:, None]
        found.append((x.to(dtype), y))
    return found


def share(rank: int, size: int = 2) -> slice:
    """The samples of a process."""
    return slice(BATCH * rank // size, BATCH * (rank + 1) // size)


def samples(model: nn.Module, x: Tensor, y: Tensor, accumulate: int = 1) -> crsam.PerSample:
    def losses(part: Tensor | slice) -> Tensor:
        return F.cross_entropy(model(x[part]), y[part], reduction="none")

    return crsam.PerSample(losses, len(x), accumulate)


def optimizer(name: str, model: nn.Module, **options: Any) -> crsam.SharpnessAware:
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return METHODS[name](base, model=model, **options)


def trained(
    name: str,
    model: nn.Module,
    mine: Any = slice(None),
    accumulate: int = 1,
    steps: range = range(NUM_STEPS),
    **options: Any,
) -> crsam.SharpnessAware:
    """Takes the steps on the samples `mine` of each batch."""
    opt = optimizer(name, model, **options)
    go_on(opt, model, mine, accumulate, steps)
    return opt


def go_on(
    opt: crsam.SharpnessAware, model: nn.Module, mine: Any, accumulate: int, steps: range
) -> None:
    data = batches(steps.stop)
    for t in steps:
        x, y = data[t]
        opt.step(samples(model, x[mine], y[mine], accumulate))


def weights(model: nn.Module) -> list[Tensor]:
    """Whole, wherever their parts are."""
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in model.parameters()
    ]
