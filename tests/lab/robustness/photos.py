"""Small images that look a little like photographs, for the tests of this room."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from crsam.lab.robustness.sampling import Bytes


def photo(number: int = 0, side: int = 64) -> Bytes:
    """Shapes over a gradient, drawn large by Pillow and made small: the same everywhere."""
    draws, small, side = np.random.default_rng(number), side, 4 * side
    rows, columns = np.mgrid[:side, :side] / side
    ground = np.stack([rows, columns, 1 - rows * columns], -1)
    picture = Image.fromarray((40 + 150 * ground).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(8):
        x, y, size = (int(v) for v in draws.integers(0, side, 3))
        colour = tuple(int(v) for v in draws.integers(0, 256, 3))
        shape = pen.ellipse if draws.random() < 0.5 else pen.rectangle
        shape((x - size // 3, y - size // 3, x + size // 3, y + size // 3), fill=colour)
    return np.asarray(picture.reduce(side // small))


def floats(number: int = 0, side: int = 64) -> np.ndarray:
    return photo(number, side).astype(np.float32) / np.float32(255)
