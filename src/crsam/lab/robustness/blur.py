"""Blur: out of focus, through glass, of a moving camera, of one that comes nearer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # type: ignore[import-untyped]  # loads its parts when they are used

from crsam.lab.robustness.sampling import Pixels, enlarged, smeared

Generator = np.random.Generator
Indices = npt.NDArray[np.intp]


def defocus_blur(image: Pixels, draws: Generator, radius: float, smooth: float) -> Pixels:
    """Each point becomes a disk, whose edge is made a little smoother.

    By Fourier transforms: a disk of radius 10 has 317 pixels.
    """
    kernel = _disk(radius, smooth)
    reach = len(kernel) // 2
    height, width, _ = image.shape
    padded = np.pad(image, [(reach, reach), (reach, reach), (0, 0)], mode="reflect")
    shape = tuple(scipy.fft.next_fast_len(side, real=True) for side in padded.shape[:2])
    spectrum = scipy.fft.rfft2(padded, shape, axes=(0, 1)) * _spectrum(radius, smooth, shape)
    found: Pixels = scipy.fft.irfft2(spectrum, shape, axes=(0, 1))
    return found[2 * reach : 2 * reach + height, 2 * reach : 2 * reach + width]


@functools.lru_cache(maxsize=16)
def _disk(radius: float, smooth: float) -> Pixels:
    """A disk on a grid that is never smaller than 17 × 17, blurred; without empty edges.

    Its sum is 1 before it is blurred. Where it touches the edge of the grid, at radii of 8 and
    10, it is 1 % more after: so it is in the published sets.
    """
    side, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-side, side + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    disk /= disk.sum()
    bell = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * smooth**2))
    for axis in (0, 1):
        disk = scipy.ndimage.correlate1d(disk, bell / bell.sum(), axis, mode="mirror")
    empty = int(np.argmax(disk.max(0) > 1e-12 * disk.max()))
    return disk[empty : len(disk) - empty, empty : len(disk) - empty].astype(np.float32)


@functools.lru_cache(maxsize=32)
def _spectrum(radius: float, smooth: float, shape: tuple[int, int]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = scipy.fft.rfft2(_disk(radius, smooth), shape)
    return found[..., None]


def glass_blur(
    image: Pixels, draws: Generator, sigma: float, reach: float, rounds: float
) -> Pixels:
    """Blurred, pixels moved about by up to `reach`, blurred again."""
    spread = (sigma, sigma, 0)
    # Published images were bytes in between, cut off rather than rounded.
    between = np.floor(255 * scipy.ndimage.gaussian_filter(image, spread, mode="nearest"))
    height, width, channels = image.shape
    flat = between.reshape(-1, channels)
    for _ in range(int(rounds)):
        steps = draws.integers(-int(reach), int(reach), (2, height, width))
        flat = flat[moved(steps, int(reach)).ravel()]
    found: Pixels = scipy.ndimage.gaussian_filter(
        flat.reshape(image.shape) / np.float32(255), spread, mode="nearest"
    )
    return found


def moved(steps: Indices, reach: int) -> Indices:
    """Where each pixel of an image comes from after one round of glass blur, all at once.

    The programs that made the published sets go from the last pixel to the first and give each
    the value of the one that is `steps` away. (They mean to swap the two, but numpy's views make
    it a copy.) A pixel after this one, in that order a step back, may be a copy itself; so there
    are chains, which always lead on to later pixels and end at one that was not yet overwritten.
    All are followed to the end together, twice as far each time.

    Args:
        steps: Down and to the right, of shape (2, H, W).
        reach: No pixel within it of the edge is changed; nor are those just at it, up and left.

    Returns:
        The index among all pixels of each one's source, of shape (H, W).

    Example:
        >>> steps = np.zeros((2, 4, 4), int)
        >>> steps[1, 2, 2], steps[1, 2, 3] = 1, -1    # 2 takes from 3, which took from 2 before
        >>> moved(steps, 1)[2]
        array([ 8,  9, 10, 10])
    """
    _, height, width = steps.shape
    place = np.arange(height * width).reshape(height, width)
    inside = np.zeros((height, width), bool)
    inside[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    source = np.where(inside, place + steps[0] * width + steps[1], place).ravel()
    was_copied = inside.ravel()[source] & (source > place.ravel())
    follow = np.where(was_copied, source, place.ravel())
    while not np.array_equal(further := follow[follow], follow):
        follow = further
    return source[follow].reshape(height, width)


def motion_blur(image: Pixels, draws: Generator, radius: float, sigma: float) -> Pixels:
    """Moved in a direction within 45° of the horizontal."""
    # ImageMagick rounds to whole bytes, where the others are cut off.
    return np.round(255 * smeared(image, radius, sigma, draws.uniform(-45, 45))) / np.float32(255)


def zoom_blur(image: Pixels, draws: Generator, stop: float, step: float) -> Pixels:
    """The mean of the image and of ever larger ones, from 1 to below `stop`."""
    factors = np.arange(1, stop, step)
    found = image.copy()
    for factor in factors:
        found += enlarged(image, float(factor))
    return found / np.float32(len(factors) + 1)
