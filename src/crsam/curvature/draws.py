"""Random vectors that can be drawn again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from crsam._states import seed_of


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
