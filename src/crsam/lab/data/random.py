"""Random bytes as images: to time a step, or to try a recipe without its data."""

from __future__ import annotations

from pathlib import Path

import torch

from crsam.lab.data.images import Dataset, Held

NUM_CLASSES = 10
NUM_TRAIN, NUM_TEST = 50_000, 10_000
"""As CIFAR-10 has, if they fit."""
MOST_BYTES = 2**28
"""Of the training images."""


def read_random(root: Path | None = None, image_size: int = 32) -> Dataset:
    """Images of three channels and labels that have nothing to do with each other.

    Always the same ones; fewer than CIFAR-10's where images are large.

    Example:
        >>> noise = read_random(image_size=64)
        >>> len(noise.train), noise.train.shape
        (21845, (3, 64, 64))
    """
    size = (3, image_size, image_size)
    fit = MOST_BYTES // (3 * image_size**2)
    g = torch.Generator().manual_seed(0)

    def some(num: int) -> Held:
        pixels = torch.randint(256, (num, *size), dtype=torch.uint8, generator=g)
        return Held(pixels, torch.randint(NUM_CLASSES, (num,), generator=g))

    return Dataset(
        some(min(NUM_TRAIN, fit)),
        some(min(NUM_TEST, max(1, fit // 5))),
        classes=tuple(str(label) for label in range(NUM_CLASSES)),
        mean=(0.5, 0.5, 0.5),
        std=(0.3, 0.3, 0.3),
    )
