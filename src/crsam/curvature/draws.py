"""Random numbers: seeds that can be told apart, draws that can be repeated, states put back."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


def seed_of(*parts: object) -> int:
    """A seed for each tuple of `parts`; torch's CPU generator looks at 32 bits of one.

    Example:
        >>> seed_of("probe", 0, 1) == seed_of("probe", 0, 1) != seed_of("probe", 1, 0)
        True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class Space(NamedTuple):
    """What a vector with an entry for each weight looks like."""

    size: int
    dtype: torch.dtype
    device: torch.device


def rademacher(space: Space, *parts: object) -> Tensor:
    """Signs, each ±1 with even odds: the same for the same `parts`, whatever the device.

    Args:
        space: Gives length, dtype and device.
        *parts: What these signs are for, such as a name, a seed and a number.

    Example:
        >>> rademacher(Space(5, torch.float32, torch.device("cpu")), "probe", 0, 0)
        tensor([ 1.,  1., -1.,  1.,  1.])
    """
    # Eight signs to a byte: five times as fast as a draw for each, and little to send to a GPU.
    generator = torch.Generator().manual_seed(seed_of(*parts))
    packed = torch.randint(256, (-(-space.size // 8),), dtype=torch.uint8, generator=generator)
    shifts = torch.arange(8, dtype=torch.uint8, device=space.device)
    bits = (packed.to(space.device)[:, None] >> shifts) & 1
    return bits.view(-1)[: space.size].to(space.dtype).mul_(2).sub_(1)


def gaussian(space: Space, *parts: object) -> Tensor:
    """Standard normal numbers: the same for the same `parts`, whatever the device."""
    generator = torch.Generator().manual_seed(seed_of(*parts))
    return torch.randn(space.size, dtype=space.dtype, generator=generator).to(space.device)


class RandomStates:
    """The states of every generator that a model, a loss or a loader may draw from.

    Those of torch on the CPU and on `devices`, of Python and of numpy.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = devices
        self.torch = [torch.get_rng_state()]
        for device in devices:
            self.torch.append(torch.get_device_module(device).get_rng_state(device))
        self.python = random.getstate()
        numpy = _numpy()
        self.numpy = numpy.random.get_state() if numpy else None

    def put_back(self) -> None:
        torch.set_rng_state(self.torch[0])
        for device, state in zip(self.devices, self.torch[1:], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            _numpy().random.set_state(self.numpy)


def seed_all(seed: int, devices: Sequence[torch.device]) -> None:
    """Seeds what `RandomStates` knows, and nothing else."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy():
        numpy.random.seed(seed)


def _numpy() -> Any:
    return sys.modules.get("numpy")  # where it was never imported, nobody draws from it
