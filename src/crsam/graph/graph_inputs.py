"""What a CUDA graph reads anew at every replay: hyper-parameters, and the seeds of its draws."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

Numbers = Mapping[Hashable, Any]
"""Numbers or 0-d tensors by name."""


class KeptGenerators:
    """Generators that stay. A graph draws from them, as they are seeded before it starts."""

    def __init__(self) -> None:
        self.generators: dict[tuple[str, int], torch.Generator] = {}

    def __call__(self, device: torch.device | str, stream: int, seed: int) -> torch.Generator:
        key = str(device), stream
        if key not in self.generators:
            self.generators[key] = torch.Generator(device)
        if not torch.cuda.is_current_stream_capturing():
            self.generators[key].manual_seed(seed)
        return self.generators[key]

    def seed(self, seed_of: Callable[[int], int]) -> None:
        """Seeds every generator as an eager step would, given the seed of each stream."""
        for (_, stream), generator in self.generators.items():
            generator.manual_seed(seed_of(stream))


class GraphInputs:
    """Numbers as tensors on the device, which a graph reads."""

    def __init__(self, numbers: Numbers, device: torch.device) -> None:
        self.tensors: dict[Hashable, Tensor] = {
            name: torch.zeros((), device=device) for name in numbers
        }
        self._written: dict[Hashable, Any] = {}

    def write(self, numbers: Numbers) -> None:
        """Puts new values into the tensors, where they have changed."""
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                self.tensors[name].copy_(value)
                self._written.pop(name, None)
            elif self._written.get(name) != value:
                self.tensors[name].fill_(value)
                self._written[name] = value
