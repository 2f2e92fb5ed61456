"""From the levels in which policies are written to magnitudes of operations.

Cubuk et al., "AutoAugment", 2018, Table 6: shears up to 0.3, shifts up to 150 of 331 pixels,
rotations up to 30 degrees, solarize from 256 to 0, posterize from 8 to 4 bits, and factors of the
enhancements from 0.1 to 1.9. The paper spaces ten levels evenly; the authors' code for CIFAR-10
(tensorflow/models, research/autoaugment) does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from crsam.lab.data.augment.ops import Op

Size = tuple[int, int]
"""Height and width of the images."""


class Level(NamedTuple):
    """A magnitude of ``centre ± swing``, the sign drawn for each image."""

    centre: float
    swing: float = 0.0


Levels = Callable[[Op, float, Size], Level]


def of_paper(op: Op, level: float, size: Size) -> Level:
    """The ranges of Table 6 in even steps from level 0 to 9."""
    return _over_range(op, level / 9, size, 150 / 331) or Level(0.1 + 1.8 * level / 9)


def of_code(op: Op, level: float, size: Size) -> Level:
    """The authors' code for CIFAR-10: tenths, whole pixels and degrees, at most 4 bits.

    Shifts go up to 10 of 32 pixels.
    """
    match op:
        case Op.ROTATE:
            return Level(0.0, int(3 * level))
        case Op.POSTERIZE:
            return Level(4 - int(4 * level / 10))
        case Op.SOLARIZE:
            return Level(256 - int(256 * level / 10))
    return _over_range(op, level / 10, size, 10 / 32) or Level(0.1 + 0.18 * level)


def of_randaugment(op: Op, level: float, size: Size) -> Level:
    """The ranges of Table 6 in tenths, stronger with every level.

    Enhancements go either way from the image as it is: their factors are 1 ± 0.09 `level`.
    """
    return _over_range(op, level / 10, size, 150 / 331) or Level(1.0, 0.09 * level)


def _over_range(op: Op, share: float, size: Size, of_size: float) -> Level | None:
    """A share of the range of `op`; None for the enhancements."""
    match op:
        case Op.SHEAR_X | Op.SHEAR_Y:
            return Level(0.0, 0.3 * share)
        case Op.TRANSLATE_X:
            return Level(0.0, int(of_size * size[1] * share + 1e-9))
        case Op.TRANSLATE_Y:
            return Level(0.0, int(of_size * size[0] * share + 1e-9))
        case Op.ROTATE:
            return Level(0.0, 30 * share)
        case Op.POSTERIZE:
            return Level(8 - round(4 * share))
        case Op.SOLARIZE:
            return Level(256 * (1 - share))
        case Op.SOLARIZE_ADD:
            return Level(int(110 * share))
        case Op.BRIGHTNESS | Op.CONTRAST | Op.COLOR | Op.SHARPNESS:
            return None
    return Level(0.0)
