"""Saves a landscape in a file while it is computed, and continues from such a file."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crsam._arrays import arrays_in, content_of
from crsam._batches import tensors_in
from crsam._files import write
from crsam.errors import UserError
from crsam.landscape.grid import Array, Grid, Surface
from crsam.landscape.points import Points

EVERY = 5.0
"""Seconds between two writes. A kill loses at most the work of this time."""
MOST = 1 << 24
"""The largest number of points of a landscape: 4096 by 4096."""


class Keeper:
    """The results so far, in memory and in a file.

    In a ``with`` block the file is written every few seconds, and at the end of the block, also
    after an exception.

    Args:
        file: The file, if there is one. If it exists, its results are read.
        about: Entries to write beside the arrays. The ``fingerprint`` tells landscapes apart.
        grid: The points.
        writes: Whether this process writes the file.

    Raises:
        UserError: If the file holds another landscape.
    """

    def __init__(
        self, file: str | Path | None, about: Mapping[str, Any], grid: Grid, writes: bool
    ) -> None:
        self.path = None if file is None else Path(file)
        self.about, self.grid, self.writes = dict(about), grid, writes
        self.loss, self.accuracy = np.full((2, *grid.shape), math.nan)
        if self.path is not None and self.path.exists():
            self._go_on(self.path)
        self._changed, self._written = False, time.monotonic()

    def _go_on(self, path: Path) -> None:
        there, about = load(path)
        if about.get("fingerprint") != self.about["fingerprint"]:
            raise UserError(
                f"{path} holds another landscape ({self._difference(there, about)}): start over "
                "(--fresh), or give another name"
            )
        self.loss[...] = there.loss
        if there.accuracy is not None:
            self.accuracy[...] = there.accuracy

    def _difference(self, there: Surface, about: Mapping[str, Any]) -> str:
        for key in {**about, **self.about}:
            theirs, ours = about.get(key), self.about.get(key)
            if key not in ("complete", "fingerprint") and theirs != ours:
                return f"{key}: {json.dumps(theirs)} there, {json.dumps(ours)} here"
        here = [len(axis) for axis in self.grid.axes]
        sizes = [len(axis) for axis in Grid(there.x, there.y).axes]
        if sizes != here:
            return f"points: {sizes} there, {here} here"
        return "of other weights, directions, points or data"

    def check(self, loss_at: Callable[[int], float]) -> None:
        """Evaluates one of the saved points again: another loss function gives another value.

        Raises:
            UserError: If the value differs.
        """
        known = np.flatnonzero(np.isfinite(self.loss))
        if not known.size:
            return
        there, here = float(self.loss.flat[known[0]]), loss_at(int(known[0]))
        if not math.isclose(there, here, rel_tol=1e-3, abs_tol=1e-6):
            raise UserError(
                f"{self.path} holds another landscape (a loss of {there:.6g} there, {here:.6g} "
                "here): start over (--fresh), or give another name"
            )

    def lacks(self, part: list[int]) -> bool:
        """Whether any of these points was not evaluated."""
        return bool(np.isnan(self.loss.flat[part]).any())

    def take(self, part: list[int], losses: Array, accuracies: Array) -> None:
        """Stores the results of these points."""
        self.loss.flat[part] = losses[: len(part)]
        self.accuracy.flat[part] = accuracies[: len(part)]
        self._changed = True
        if time.monotonic() - self._written > EVERY:
            self._write()

    def surface(self) -> Surface:
        """The results of all points."""
        known = None if np.isnan(self.accuracy).all() else self.accuracy
        return Surface(self.grid.x, self.grid.y, self.loss, known)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *error: Any) -> None:
        self._write()

    def _write(self) -> None:
        if self.path is not None and self.writes and self._changed:
            save(self.path, self.surface(), self.about)
        self._changed, self._written = False, time.monotonic()


def save(path: Path, surface: Surface, about: Mapping[str, Any]) -> None:
    """Writes the arrays ``x``, ``y``, ``loss``, ``accuracy``, and ``about`` as JSON.

    Raises:
        UserError: If it cannot be written. The old file is then unchanged.
    """
    arrays = {name: array for name, array in vars(surface).items() if array is not None}
    text = json.dumps({**about, "complete": surface.complete})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(text), **arrays)
    write(path, buffer.getvalue())


def load(path: str | Path) -> tuple[Surface, dict[str, Any]]:
    """The landscape in a file and the entries about it. No code in the file is run.

    Raises:
        UserError: If there is no such file, or it is not a landscape.

    Example:
        >>> load("nowhere.npz")
        Traceback (most recent call last):
        crsam.errors.UserError: cannot read nowhere.npz: No such file or directory
    """
    try:
        return parsed(content_of(Path(path)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a landscape: {error}") from error


def parsed(raw: bytes) -> tuple[Surface, dict[str, Any]]:
    """The landscape in the content of a file, and the entries about it.

    Raises:
        ValueError: If it is not a landscape, with the reason.
    """
    found = arrays_in(raw)
    for name in ("x", "loss"):
        if name not in found:
            raise ValueError(f"it has no array {name}")
    arrays = {name: found[name] for name in ("x", "y", "loss", "accuracy") if name in found}
    if any(array.dtype.kind not in "fiu" for array in arrays.values()):
        raise ValueError("an array does not hold numbers")
    most = max(array.size for array in arrays.values())
    if most > MOST:
        raise ValueError(f"it has {most:,} points, more than {MOST:,}")
    numbers: dict[str, Array] = {name: array.astype(np.float64) for name, array in arrays.items()}
    x, y = numbers["x"].ravel(), numbers["y"].ravel() if "y" in numbers else None
    if not all(axis.size and np.isfinite(axis).all() for axis in (x, y) if axis is not None):
        raise ValueError("x or y is not finite, or empty")
    shape = Grid(x, y).shape
    for name in {"loss", "accuracy"} & numbers.keys():
        if numbers[name].shape not in (shape, (1, *shape)[-2:]):
            raise ValueError(f"{name} is of shape {numbers[name].shape}, x and y ask for {shape}")
        numbers[name] = numbers[name].reshape(shape)
    try:
        about = json.loads(str(found["about"])) if "about" in found else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what it says about itself is not JSON: {error}") from error
    surface = Surface(x, y, numbers["loss"], numbers.get("accuracy"))
    return surface, about if isinstance(about, dict) else {}


def fingerprint(points: Points, grid: Grid, at_once: int) -> str:
    """Tells landscapes apart by weights, directions, points, data and how they are evaluated."""
    how = repr((points.batch_norm, at_once))
    digest = hashlib.blake2b(how.encode(), digest_size=16)
    for tensors in (points.model.state_dict(), *points.directions):
        digest.update(digest_of(tensors).encode())
    for axis in grid.axes:
        digest.update(b"axis" + axis.tobytes())
    for batch in points.loss.batches.given:
        for tensor in tensors_in(batch):
            digest.update(repr(tensor.shape).encode())
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Tells named tensors apart, to the last bit."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
