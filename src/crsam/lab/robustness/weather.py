"""Weather: snow, frost on the pane, fog, a bright day."""

from __future__ import annotations

import numpy as np

from crsam.lab.robustness.frost import Panes, cut
from crsam.lab.robustness.sampling import Pixels, enlarged, smeared

Generator = np.random.Generator


def snow(
    image: Pixels,
    draws: Generator,
    mean: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Pixels:
    """Flakes that fall, from two sides, before a paler image."""
    size = image.shape[:2]
    flakes = np.float32(mean) + np.float32(scale) * draws.standard_normal(size, np.float32)
    flakes = enlarged(flakes, zoom)
    flakes = np.floor(255 * np.clip(np.where(flakes < threshold, 0, flakes), 0, 1))
    fallen = np.round(smeared(flakes, radius, sigma, draws.uniform(-135, -45))) / 255
    gray = 0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]
    paler = weight * image + (1 - weight) * np.maximum(image, 1.5 * gray[..., None] + 0.5)
    return (paler + (fallen + np.rot90(fallen, 2))[..., None]).astype(np.float32)


def frost(
    image: Pixels, draws: Generator, weight: float, ice: float, scale: float, panes: Panes
) -> Pixels:
    """The image seen through a frozen pane, some part of one of `panes`."""
    pane = cut(panes, image.shape[:2], draws, scale)
    return np.float32(weight) * image + np.float32(ice) * pane


def fog(image: Pixels, draws: Generator, thickness: float, decay: float) -> Pixels:
    """A fractal cloud is added, and the image brought back to its range."""
    height, width, _ = image.shape
    cloud = plasma(1 << (max(height, width) - 1).bit_length(), decay, draws)[:height, :width]
    brightest = image.max()
    return (image + np.float32(thickness) * cloud[..., None]) * (
        brightest / (brightest + np.float32(thickness))
    )


def plasma(size: int, decay: float, draws: Generator) -> Pixels:
    """A fractal landscape between 0 and 1, by midpoint displacement on a torus.

    Each round fills in the middle of every square, then of every diamond: the mean of the four
    around it and a random part, uniform to either side. Its reach is the square of what `decay`
    divides each time: so the programs of the published sets have it.

    Args:
        size: A power of two.
        decay: The larger, the smoother.
        draws: Of the random parts.
    """
    land = np.zeros((size, size), np.float32)
    step, spread = size, 100.0

    def varied(total: Pixels) -> Pixels:
        wild = draws.random(total.shape, np.float32) * 2 - 1
        return total / 4 + np.float32(spread**2) * wild

    while step > 1:
        half = step // 2
        corners = land[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        land[half::step, half::step] = varied(pairs + np.roll(pairs, -1, 1))
        middles = land[half::step, half::step]
        beside = middles + np.roll(middles, 1, 0) + corners + np.roll(corners, -1, 1)
        below = middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 0)
        land[::step, half::step] = varied(beside)
        land[half::step, ::step] = varied(below)
        step, spread = half, spread / decay
    land -= land.min()
    return land / land.max()


def brightness(image: Pixels, draws: Generator, more: float) -> Pixels:
    """The value of HSV is raised: hue and saturation stay, so all channels grow by one factor."""
    value = image.max(-1, keepdims=True)
    raised = np.minimum(value + np.float32(more), 1)
    # Black has no hue: it becomes grey.
    return np.where(value > 0, image * (raised / np.maximum(value, 1e-9)), raised)
