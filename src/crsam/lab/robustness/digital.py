"""What is done to images after they were taken: contrast, bending, large pixels, compression."""

from __future__ import annotations

import functools
import io

import numpy as np
import scipy  # type: ignore[import-untyped]  # loads its parts when they are used
from PIL import Image

from crsam.lab.robustness.sampling import Bytes, Pixels, Places, sampled

Generator = np.random.Generator


def contrast(image: Pixels, draws: Generator, factor: float) -> Pixels:
    """Nearer to the mean of each channel."""
    mean = image.mean((0, 1), keepdims=True)
    return (image - mean) * np.float32(factor) + mean


def elastic_transform(
    image: Pixels, draws: Generator, strength: float, smooth: float, shift: float
) -> Pixels:
    """Moved by a random affine map, then bent by a random smooth field.

    Args:
        image: Between 0 and 1.
        draws: Of map and field.
        strength: Of the field, before it is smoothed.
        smooth: Deviation of the Gaussian that smooths it.
        shift: By how much each of three points is moved, at most. All are shares of the shorter
            side.
    """
    height, width, _ = image.shape
    side = min(height, width)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    x, y = _affine(columns, rows, draws.uniform(-shift * side, shift * side, (3, 2)))
    image = sampled(image, y, x, edge_twice=False)
    if strength == 0:
        return image
    dx, dy = (
        strength * side * _smoothed(draws.random((height, width)) * 2 - 1, smooth * side)
        for _ in range(2)
    )
    return sampled(image, rows + dy, columns + dx, edge_twice=True)


def _affine(x: Pixels, y: Pixels, moves: Places) -> tuple[Pixels, Pixels]:
    """Where pixels come from if three corners of a square in the middle are moved."""
    height, width = x.shape
    middle, third = np.array([width // 2, height // 2]), min(height, width) // 3
    corners = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])
    targets = np.column_stack([corners + moves, np.ones(3)])
    back = np.linalg.solve(targets, corners).astype(np.float32)
    return (
        back[0, 0] * x + back[1, 0] * y + back[2, 0],
        back[0, 1] * x + back[1, 1] * y + back[2, 1],
    )


def _smoothed(field: Places, sigma: float) -> Places:
    """A Gaussian blur, mirrored at the edges, whose kernel ends at 3 `sigma`.

    The cosine transform turns it into a product: as fast for a kernel wider than the image, which
    the first severity has, as for a narrow one.
    """
    height, width = field.shape
    response = _response(height, sigma)[:, None] * _response(width, sigma)
    found: Places = scipy.fft.idctn(scipy.fft.dctn(field) * response)
    return found


@functools.lru_cache(maxsize=64)
def _response(size: int, sigma: float) -> Places:
    reach = np.arange(1, int(3 * sigma + 0.5) + 1)
    weights = np.exp(-(reach**2) / (2 * sigma**2))
    waves = np.cos(np.pi / size * np.outer(np.arange(size), reach))
    found: Places = (1 + 2 * waves @ weights) / (1 + 2 * weights.sum())
    return found


def pixelate(image: Bytes, draws: Generator, share: float) -> Bytes:
    """Made small and large again, without smoothing."""
    height, width, _ = image.shape
    size = (max(1, int(width * share)), max(1, int(height * share)))
    small = Image.fromarray(image).resize(size, Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Bytes, draws: Generator, quality: float) -> Bytes:
    """Saved as a JPEG file of low quality."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=int(quality))
    return np.array(Image.open(file))
