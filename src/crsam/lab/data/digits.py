"""scikit-learn's handwritten digits: a set that needs no download and trains in seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.images import Dataset, Held, split

NUM_TEST = 360
"""A fifth of the 1,797 images."""


def read_digits() -> Dataset:
    """1,437 images to learn from and 360 to be judged on, 8 × 8 pixels, one channel.

    The split is always the same and has the same share of each digit on both sides. Pixels are
    fed as they are, between 0 and 1: brought to mean 0 and deviation 1, nets learn wrong labels by
    heart sooner, with every method.

    Raises:
        UserError: If scikit-learn is not installed.

    Example:
        >>> digits = read_digits()
        >>> len(digits.train), len(digits.test), digits.train.shape
        (1437, 360, (1, 8, 8))
    """
    table = _table()
    images = as_bytes(table[:, :-1]).view(-1, 1, 8, 8)
    every = Held(images, table[:, -1].long())
    train, test = split(every, NUM_TEST / len(every), seed=0)
    return Dataset(
        train,
        test,
        classes=tuple(str(digit) for digit in range(10)),
        mean=(0.0,),
        std=(1.0,),
    )


def _table() -> Tensor:
    """A row for each image: its 64 pixels from 0 to 16, then the digit.

    Read from scikit-learn's own file where that is in its place: to import scikit-learn takes a
    second.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise UserError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        )
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return torch.from_numpy(np.loadtxt(file, delimiter=","))
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data, target = load_digits(return_X_y=True)
    return torch.from_numpy(np.column_stack([data, target]))


def as_bytes(values: Tensor) -> Tensor:
    """The bytes for the digits' values: ``round(255 / 16 * value)``.

    The 17 values from 0 to 16 become 17 different bytes from 0 to 255, so nothing is lost:
    ``round(16 / 255 * byte)`` gives them back. A byte over 255 is the value over 16 up to 0.002.

    Example:
        >>> as_bytes(torch.tensor([0.0, 1.0, 8.0, 16.0]))
        tensor([  0,  16, 128, 255], dtype=torch.uint8)
    """
    return (255 * values.double() / 16).round().byte()
