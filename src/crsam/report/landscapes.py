"""Loss landscapes as ``crsam landscape`` leaves them in a run folder."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

UNREADABLE = (AttributeError, EOFError, KeyError, NotImplementedError, OSError, TypeError,
              zipfile.BadZipFile, zlib.error)  # fmt: skip
"""What `numpy.load` raises for what is not an ``.npz``, beside ValueError."""


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
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except UNREADABLE as error:
        raise ValueError("not a file of arrays") from error
    missing = [name for name in ("x", "loss") if name not in found]
    if missing:
        raise ValueError(f"it has no array {missing[0]}")
    arrays = {name: found[name] for name in ("x", "y", "loss", "accuracy") if name in found}
    if any(array.dtype.kind not in "fiu" for array in arrays.values()):
        raise ValueError("an array does not hold numbers")
    numbers = {name: array.astype(np.float64) for name, array in arrays.items()}
    x, y = numbers["x"], numbers.get("y")
    if not all(np.isfinite(axis).all() for axis in (x, y) if axis is not None):
        raise ValueError("x or y is not finite")
    loss = np.atleast_2d(numbers["loss"])
    shape = (1 if y is None else y.size, x.size)
    accuracy = numbers.get("accuracy")
    accuracy = None if accuracy is None else np.atleast_2d(accuracy)
    if min(shape) < 1 or loss.shape != shape or not (accuracy is None or accuracy.shape == shape):
        raise ValueError(f"loss is of shape {loss.shape}, x and y ask for {shape}")
    about = json.loads(str(found["about"])) if "about" in found else {}
    about = about if isinstance(about, dict) else {}
    return Landscape(x.ravel(), y if y is None else y.ravel(), loss, accuracy, about)
