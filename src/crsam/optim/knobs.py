"""What a graph reads anew whenever it is replayed: hyper-parameters, and the seeds of its draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from crsam.optim.sharpness import SharpnessAware
from crsam.optim.step import Step


class Dice:
    """Generators that stay: a graph draws from them, as they are seeded when it starts."""

    def __init__(self) -> None:
        self.generators: dict[tuple[str, int], torch.Generator] = {}

    def __call__(self, device: torch.device | str, stream: int, seed: int) -> torch.Generator:
        key = str(device), stream
        if key not in self.generators:
            self.generators[key] = torch.Generator(device)
        if not torch.cuda.is_current_stream_capturing():
            self.generators[key].manual_seed(seed)
        return self.generators[key]

    def seed(self, step: Step) -> None:
        """As the step would."""
        for (_, stream), generator in self.generators.items():
            generator.manual_seed(step.seed(stream))


class Knobs:
    """Hyper-parameters as tensors: what a graph reads, and what the groups say at each step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        device = optimizer.param_groups[0]["params"][0].device
        self._said: dict[tuple[int, str], Any] = {}
        self._tensors = {key: torch.zeros((), device=device) for key in self._read()}

    def _read(self) -> dict[tuple[int, str], Any]:
        groups, ours = self.optimizer.param_groups, self.optimizer
        values = {(i, "lr"): group["lr"] for i, group in enumerate(groups)}
        if isinstance(ours, SharpnessAware):
            values |= {
                (i, name): ours._value(group, name)
                for i, group in enumerate(groups)
                for name in ours._keys
            }
        return values

    def fill(self) -> None:
        """Puts what the groups say now into the tensors."""
        for key, value in self._read().items():
            if isinstance(value, Tensor):
                self._tensors[key].copy_(value)
            elif self._said.get(key) != value:
                self._tensors[key].fill_(value)
                self._said[key] = value

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Within, the optimizer reads the tensors."""
        groups, ours = self.optimizer.param_groups, self.optimizer
        rates = [group["lr"] for group in groups]
        number = {id(group): i for i, group in enumerate(groups)}
        try:
            for i, group in enumerate(groups):
                group["lr"] = self._tensors[i, "lr"]
            if isinstance(ours, SharpnessAware):
                ours._values = lambda group, name: self._tensors[number[id(group)], name]
            yield
        finally:
            for group, rate in zip(groups, rates):
                group["lr"] = rate
            if isinstance(ours, SharpnessAware):
                ours._values = None
