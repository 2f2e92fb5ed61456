"""Images read between their pixels: enlarged, moved along a line, bent."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.float32]
"""Of shape (H, W) or (H, W, C)."""
Places = npt.NDArray[np.floating[Any]]


def enlarged(image: Pixels, factor: float) -> Pixels:
    """The middle of an image, enlarged linearly to the size of the whole.

    The corners of the part that is cut out stay corners, as in `scipy.ndimage.zoom`, which is
    many times slower.

    Example:
        >>> enlarged(np.float32([[0, 3, 9, 0]] * 4), 2)[0]
        array([3., 5., 7., 9.], dtype=float32)
    """
    top, down = _between(image.shape[0], factor)
    left, right = _between(image.shape[1], factor)
    tail = (1,) * (image.ndim - 2)
    rows = image[top]
    rows += (image[top + 1] - rows) * down.reshape(-1, 1, *tail)
    found = rows[:, left]
    found += (rows[:, left + 1] - found) * right.reshape(-1, *tail)
    return found


@functools.lru_cache(maxsize=256)
def _between(size: int, factor: float) -> tuple[npt.NDArray[np.intp], Pixels]:
    """For each of `size` pixels, the one before it among those enlarged, and how far behind."""
    cut = math.ceil(size / factor)
    full = round(cut * factor)
    places = (np.arange(size) + (full - size) // 2) * (max(cut - 1, 0) / max(full - 1, 1))
    # The last place lies on the last pixel: between it and the one before.
    first = np.minimum(np.floor(places), max(cut - 2, 0)).astype(np.intp)
    return first + (size - cut) // 2, (places - first).astype(np.float32)


def smeared(image: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Each pixel is the mean of those that lie in one direction from it, the near ones most.

    This is ImageMagick's motion blur, which made the published sets: one half of a Gaussian over
    2 ⌈radius⌉ + 1 pixels, whose places are rounded to whole ones. Beyond the edge there is more
    of the edge.

    Args:
        image: Of any range.
        radius: Half the length.
        sigma: Of the Gaussian.
        angle: In degrees, from the right downwards.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    turn = math.radians(angle)
    down = np.ceil(steps * math.sin(turn) - 0.5).astype(int)
    right = np.ceil(steps * math.cos(turn) - 0.5).astype(int)
    height, width = image.shape[:2]
    before = (max(0, -down.min()), max(0, -right.min()))
    margins = [(before[0], max(0, down.max())), (before[1], max(0, right.max()))]
    padded = np.pad(image, margins + [(0, 0)] * (image.ndim - 2), mode="edge")
    found = np.zeros(image.shape, np.float32)
    for weight, dy, dx in zip(weights.astype(np.float32), down + before[0], right + before[1]):
        found += weight * padded[dy : dy + height, dx : dx + width]
    return found


def sampled(image: Pixels, rows: Places, columns: Places, *, edge_twice: bool) -> Pixels:
    """The image at places between its pixels, linearly; beyond the edge it is mirrored.

    Args:
        image: Of shape (H, W, C).
        rows: Of shape (H, W).
        columns: Of shape (H, W).
        edge_twice: Whether the pixel at the edge has a mirror image of its own.
    """
    height, width, channels = image.shape
    top, left = np.floor(rows), np.floor(columns)
    down, right = ((rows - top)[..., None], (columns - left)[..., None])
    flat = image.reshape(-1, channels)

    def line(row: Places) -> Pixels:
        start = _mirrored(row.astype(np.intp), height, edge_twice) * width
        near, far = (
            flat[start + _mirrored(left.astype(np.intp) + step, width, edge_twice)]
            for step in (0, 1)
        )
        return near + (far - near) * right.astype(np.float32)

    above, below = line(top), line(top + 1)
    return above + (below - above) * down.astype(np.float32)


def _mirrored(index: npt.NDArray[np.intp], size: int, edge_twice: bool) -> npt.NDArray[np.intp]:
    if size == 1:
        return np.zeros_like(index)
    if edge_twice:
        index = index % (2 * size)
        return np.minimum(index, 2 * size - 1 - index)
    index = index % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)
