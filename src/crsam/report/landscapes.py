"""Loss landscapes as ``crsam landscape`` leaves them in a run folder."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
    except (zipfile.BadZipFile, OSError, EOFError, KeyError, NotImplementedError) as error:
        raise ValueError(f"not a file of arrays ({error})") from error
    missing = [name for name in ("x", "loss") if name not in found]
    if missing:
        raise ValueError(f"it has no array {missing[0]}")
    numbers = {
        name: np.asarray(found[name], dtype=np.float64)
        for name in ("x", "y", "loss", "accuracy")
        if name in found
    }
    x, y = numbers["x"], numbers.get("y")
    loss = np.atleast_2d(numbers["loss"])
    shape = (1 if y is None else y.size, x.size)
    accuracy = numbers.get("accuracy")
    accuracy = None if accuracy is None else np.atleast_2d(accuracy)
    if min(shape) < 1 or loss.shape != shape or not (accuracy is None or accuracy.shape == shape):
        raise ValueError(f"loss is of shape {loss.shape}, x and y ask for {shape}")
    about = json.loads(str(found["about"])) if "about" in found else {}
    return Landscape(x.ravel(), y if y is None else y.ravel(), loss, accuracy, dict(about))
