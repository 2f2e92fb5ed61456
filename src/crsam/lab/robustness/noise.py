"""Noise of each pixel on its own."""

from __future__ import annotations

import numpy as np

from crsam.lab.robustness.sampling import Pixels

Generator = np.random.Generator


def gaussian_noise(image: Pixels, draws: Generator, scale: float) -> Pixels:
    """As in low light."""
    return image + np.float32(scale) * draws.standard_normal(image.shape, np.float32)


def shot_noise(image: Pixels, draws: Generator, photons: float) -> Pixels:
    """Light comes in `photons`, so many where the image is white."""
    return (draws.poisson(image * photons) / photons).astype(np.float32)


def impulse_noise(image: Pixels, draws: Generator, share: float) -> Pixels:
    """A share of the values, each channel's by itself, is black or white."""
    chance = draws.random(image.shape, np.float32)
    return np.where(chance < share, np.float32(1) * (chance < share / 2), image)
