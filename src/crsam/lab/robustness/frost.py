"""Frozen panes: our own, grown from random numbers, or photographs.

The published sets have five photographs of frost, of unknown licence, which are not ours to ship.
So ours are made: feathers of ice around random seeds. Mean and deviation of each pane's colours
are those of one of the photographs, so that as much light is added and hidden; the pattern is
another. Whoever has the photographs can use them: see `photographs`.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # type: ignore[import-untyped]  # loads its parts when they are used
from PIL import Image

from crsam.errors import UserError
from crsam.lab.robustness.sampling import Pixels

Panes = tuple[Pixels, ...]
"""Colours between 0 and 1, each of shape (H, W, 3)."""

SIZE = (400, 600)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class Tint(NamedTuple):
    """Mean and deviation of red, green and blue, out of 255, of a photograph of frost."""

    mean: tuple[int, int, int]
    std: tuple[int, int, int]


TINTS = (
    Tint((78, 149, 166), (27, 16, 15)),
    Tint((201, 205, 214), (21, 22, 23)),
    Tint((201, 205, 214), (21, 22, 23)),
    Tint((138, 153, 165), (28, 28, 30)),
    Tint((112, 123, 135), (44, 43, 42)),
)
"""Of the five that the published sets drew from; two of them are the same photograph."""


@functools.lru_cache(maxsize=1)
def grown() -> Panes:
    """Five panes, always the same.

    Example:
        >>> [pane.shape for pane in grown()[:2]]
        [(400, 600, 3), (400, 600, 3)]
    """
    return tuple(_pane(number, tint) for number, tint in enumerate(TINTS))


def photographs(folder: Path) -> Panes:
    """The images of a folder, for use in place of our own panes.

    Raises:
        UserError: If there are none.
    """
    found = [file for file in sorted(folder.glob("*")) if file.suffix.lower() in SUFFIXES]
    if not found:
        raise UserError(f"{folder} holds no photographs of frost ({' '.join(SUFFIXES)})")
    pictures = [np.asarray(Image.open(file).convert("RGB"), np.float32) for file in found]
    return tuple(picture / np.float32(255) for picture in pictures)


def cut(
    panes: Panes, size: tuple[int, ...], draws: np.random.Generator, scale: float = 1
) -> Pixels:
    """A random part of a random pane.

    Args:
        panes: All of them.
        size: Height and width of the part.
        draws: Of pane and place.
        scale: What a pane is shrunk to before, every so-many-th pixel; it is enlarged if it is
            too small even so.
    """
    step = round(1 / scale)
    pane = panes[draws.integers(len(panes))][step // 2 :: step, step // 2 :: step]
    if pane.shape[0] < size[0] or pane.shape[1] < size[1]:
        factor = max(size[0] / pane.shape[0], size[1] / pane.shape[1])
        pane = scipy.ndimage.zoom(pane, (factor * 1.1, factor * 1.1, 1), order=1)
    top, left = (draws.integers(full - part + 1) for full, part in zip(pane.shape, size))
    return pane[top : top + size[0], left : left + size[1]]


def _pane(number: int, tint: Tint) -> Pixels:
    draws = np.random.default_rng(number)
    # Small feathers over large ones, and light that falls unevenly.
    ice = np.maximum.reduce([_feathers(count, draws) for count in (50, 250)])
    light = scipy.ndimage.gaussian_filter(draws.standard_normal(SIZE), 60, mode="wrap")
    gray = ice / ice.std() + 0.5 * light / light.std()
    gray = np.clip((gray - gray.mean()) / gray.std(), -2.5, 3)
    gray -= gray.mean()
    coloured = np.array(tint.mean) + gray[..., None] / gray.std() * np.array(tint.std)
    return np.clip(coloured / 255, 0, 1).astype(np.float32)


def _feathers(count: int, draws: np.random.Generator) -> npt.NDArray[np.float64]:
    """Every pixel belongs to the nearest seed, from which a spine grows with barbs at 60°."""
    height, width = SIZE
    seeds = draws.random((count, 2)) * SIZE
    rows, columns = np.mgrid[:height, :width]
    wobble = scipy.ndimage.gaussian_filter(
        draws.standard_normal((2, *SIZE)), (0, 6, 6), mode="wrap"
    )
    wobble *= 1.2 / wobble.std()
    places = np.stack([rows + wobble[0], columns + wobble[1]], -1)
    _, nearest = scipy.spatial.cKDTree(seeds).query(places)
    offset = places - seeds[nearest]
    turn = (draws.random(count) * 2 * math.pi)[nearest]
    along = offset[..., 0] * np.sin(turn) + offset[..., 1] * np.cos(turn)
    across = np.abs(offset[..., 0] * np.cos(turn) - offset[..., 1] * np.sin(turn))
    barb = along - across * math.cos(math.pi / 3) / math.sin(math.pi / 3)
    # Barbs of random brightness, each 3 to 4 pixels wide, of the seed's own kind.
    line = scipy.ndimage.gaussian_filter(draws.standard_normal(4096), 1.2, mode="wrap")
    which = ((barb + 97 * nearest).round() % len(line)).astype(int)
    found: npt.NDArray[np.float64] = line[which] / line.std() + 2.5 * np.exp(-across / 1.5)
    return found
