"""Landscapes as the page draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crsam.lab.report.groups import is_number
from crsam.lab.report.landscapes import Landscape
from crsam.landscape.grid import Array

SIDE = 81
"""Points along an edge; more cannot be told apart on a screen."""


def surface(landscape: Landscape, most: int) -> dict[str, Any]:
    """A landscape as plain values, with every few points left out where there are too many.

    Args:
        landscape: Which one.
        most: Points of a line.
    """
    side = min(SIDE, most)
    columns = _every(landscape.x.size, side if landscape.y is not None else most)
    rows = _every(landscape.loss.shape[0], side)
    return {
        "x": _plain(landscape.x[columns]),
        "y": None if landscape.y is None else _plain(landscape.y[rows]),
        "loss": [_plain(row) for row in landscape.loss[np.ix_(rows, columns)]],
        "about": {key: value for key, value in landscape.about.items() if _is_plain(value)},
    }


def _every(size: int, most: int) -> list[int]:
    """Indices of at most `most` points, both ends among them."""
    stride = math.ceil(max(size - 1, 1) / max(most - 1, 1))
    chosen = list(range(0, size, stride))
    return chosen if chosen[-1] == size - 1 else [*chosen, size - 1]


def _plain(values: Array) -> list[float | None]:
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in values]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(word, str) for word in value)
    return isinstance(value, str | bool) or is_number(value)
