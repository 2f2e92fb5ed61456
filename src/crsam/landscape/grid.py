"""The arrays of a landscape: its points and the results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crsam.errors import UserError

Array = NDArray[np.float64]
NUM_POINTS = 51


@dataclass(frozen=True)
class Surface:
    """A landscape as arrays. NaN: not evaluated. Infinite: the loss is not finite."""

    x: Array
    """The coordinates along the first direction, of shape (n,)."""
    y: Array | None
    """The coordinates along the second direction, of shape (m,), if there is one."""
    loss: Array
    """Losses of shape (m, n) with a row for each y, or (n,) along one direction."""
    accuracy: Array | None = None
    """Accuracies in per cent, of the same shape, if `loss_fn` says what is right."""

    @property
    def complete(self) -> bool:
        """Whether every point was evaluated."""
        return not np.isnan(self.loss).any()


@dataclass(frozen=True)
class Grid:
    """The points of a surface, numbered row by row."""

    x: Array
    y: Array | None

    @classmethod
    def of(cls, x: ArrayLike | None, y: ArrayLike | None, num: int) -> Grid:
        """The grid of `num` directions from the user's coordinates."""
        if y is not None and num == 1:
            raise UserError("y is given, but there is one direction only")
        first = _checked("x", symmetric(1.0, NUM_POINTS) if x is None else x)
        return cls(first, None if num == 1 else first if y is None else _checked("y", y))

    @property
    def axes(self) -> list[Array]:
        return [self.x] if self.y is None else [self.x, self.y]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in reversed(self.axes))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def parts(self, length: int) -> list[list[int]]:
        """The numbers of all points, in parts of this length."""
        return [list(range(i, min(i + length, self.size))) for i in range(0, self.size, length)]

    def points(self, part: list[int]) -> list[tuple[float, ...]]:
        places = [np.unravel_index(k, self.shape) for k in part]
        return [tuple(float(a[i]) for a, i in zip(self.axes, reversed(at))) for at in places]


def symmetric(span: float, num: int) -> Array:
    """From −`span` to `span`, with 0 itself in the middle where `num` is odd.

    Example:
        >>> symmetric(1.0, 5)
        array([-1. , -0.5,  0. ,  0.5,  1. ])
    """
    return span * (np.arange(num) * 2 - (num - 1)) / max(num - 1, 1)


def _checked(name: str, values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise UserError(f"{name} must be a list of finite numbers, got {values!r}")
    if (np.diff(found) <= 0).any():
        raise UserError(f"{name} must rise from point to point, got {values!r}")
    return found
