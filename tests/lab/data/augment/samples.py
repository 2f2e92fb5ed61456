"""Images, generators and frequencies for these tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crsam.lab.data.augment import Op

SIZES = [(8, 8), (32, 32), (21, 34)]
MAGNITUDES = {
    Op.SHEAR_X: (-0.6, 0.6),
    Op.SHEAR_Y: (-0.6, 0.6),
    Op.TRANSLATE_X: (-12.0, 12.0),
    Op.TRANSLATE_Y: (-12.0, 12.0),
    Op.ROTATE: (-180.0, 180.0),
    Op.POSTERIZE: (1.0, 8.99),
    Op.SOLARIZE: (0.0, 256.0),
    Op.SOLARIZE_ADD: (-128.0, 128.0),
}
"""Far beyond those of the policies; the factors of the enhancements go from 0 to 2.5."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_share(counted: Tensor | int, n: int, share: float) -> None:
    """Within 4.5 standard errors of a binomial."""
    error = math.sqrt(share * (1 - share) / n)
    assert (torch.as_tensor(counted) / n - share).abs().max() <= 4.5 * error


def random_images(n: int, size: tuple[int, int], channels: int = 3, seed: int = 0) -> Tensor:
    """Noise; in every other image of a narrow range in each channel, which may be a single byte."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, channels, *size), generator=g)
    low = torch.randint(200, (n, channels, 1, 1), generator=g)
    span = torch.randint(1, 57, (n, channels, 1, 1), generator=g)
    return torch.where(torch.arange(n).view(n, 1, 1, 1) % 2 == 0, x, low + x % span).byte()


def random_magnitudes(op: Op, n: int, seed: int = 0) -> Tensor:
    low, high = MAGNITUDES.get(op, (0.0, 2.5))
    g = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(n, generator=g, dtype=torch.float64)
