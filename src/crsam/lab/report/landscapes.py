"""Loss landscapes as ``crsam landscape`` leaves them in a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crsam.landscape.file import parsed
from crsam.landscape.grid import Array


@dataclass(frozen=True, eq=False)
class Landscape:
    """Losses along a line or over a plane; NaN where there is none yet."""

    x: Array
    y: Array | None
    """None for a line."""
    loss: Array
    """A row for each y, a column for each x."""
    accuracy: Array | None
    about: dict[str, Any]
    """How it was made: kind, seed, split, samples, of."""


def read_landscape(raw: bytes) -> Landscape:
    """What is in a ``landscape.npz``; nothing in it is run.

    Raises:
        ValueError: If it is not one, with the reason.
    """
    found, about = parsed(raw)
    accuracy = None if found.accuracy is None else np.atleast_2d(found.accuracy)
    return Landscape(found.x, found.y, np.atleast_2d(found.loss), accuracy, about)
