"""Checks of the user's arguments, and warnings that name the user's line."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path

from crsam.errors import UserError

HERE = str(Path(__file__).parent)


def check_positive(**values: float) -> None:
    """Raises a `UserError` unless all are finite numbers above 0."""
    for name, value in values.items():
        if not isinstance(value, Real) or not 0 < value < math.inf:
            raise UserError(f"{name} must be a number above 0, got {value!r}")


def check_count(least: int = 1, **values: int) -> None:
    """Raises a `UserError` unless all are whole numbers of at least `least`."""
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_one_of(allowed: Sequence[str], **values: str) -> None:
    """Raises a `UserError` unless all are among the allowed words."""
    for name, value in values.items():
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise UserError(f"{name} must be {words}, got {value!r}")


def warn(message: str) -> None:
    """Warns at the line that called into this package."""
    depth, ours, frame = 1, 1, sys._getframe()
    while frame.f_back is not None:
        if frame.f_code.co_filename.startswith(HERE):
            ours = depth
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, stacklevel=ours + 1)
