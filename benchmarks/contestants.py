"""What the benchmarks compare: one training step of each method, on a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam

PLAIN, BASE, SAM, RIVAL = "plain pass", "SGD", "sam", "pytorch_optimizer SAM"
CRSAM_LOG, CRSAM_LINEAR = "crsam log", "crsam linear"
HAS_RIVAL = find_spec("pytorch_optimizer") is not None
LR, MOMENTUM, RHO = 0.01, 0.9, 0.05
"""Of every contestant, but for methods of ours, whose ρ is their own default."""


class Contestant(NamedTuple):
    """A step to call again and again, and how many steps lie between two of its dearest."""

    step: Callable[[], object]
    period: int = 1


def names() -> list[str]:
    """The plain pass and the base first, then all methods, then the rival."""
    others = [name for name in crsam.methods() if name not in ("crsam", SAM)]
    return [PLAIN, BASE, SAM, CRSAM_LOG, CRSAM_LINEAR, *others, *([RIVAL] * HAS_RIVAL)]


def build(name: str, net: nn.Module, x: Tensor, y: Tensor) -> Contestant:
    """The contestant `name`, starting from a copy of `net` and always fed this batch."""
    model = copy.deepcopy(net)

    def closure() -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def losses(part: Tensor | slice) -> Tensor:
        return F.cross_entropy(model(x[part]), y[part], reduction="none")

    if name == PLAIN:
        return Contestant(closure)
    if name == RIVAL:
        import pytorch_optimizer

        rival = pytorch_optimizer.SAM(model.parameters(), SGD, rho=RHO, lr=LR, momentum=MOMENTUM)
        # Its manual: the gradient at w is computed before `step`, which takes that at w + e.
        return Contestant(lambda: (closure(), rival.step(closure)))  # type: ignore[arg-type]
    base = SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    if name == BASE:
        return Contestant(lambda: (closure(), base.step()))
    method, _, form = name.partition(" ")
    ours = crsam.make(method, base, **({"form": form} if form else {}))
    samples = crsam.PerSample(losses, len(x))
    period = getattr(ours.schedule, "k", 1)
    if any(part.needs_samples for part in (ours.ascent, ours.objective, ours.schedule)):
        return Contestant(lambda: ours.step(samples), period)
    return Contestant(lambda: ours.step(closure), period)


def batch_of(num: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random images and labels: what is in them costs nothing."""
    x = torch.randn(num, 3, size, size)
    return x.to(device), torch.randint(10, (num,)).to(device)
