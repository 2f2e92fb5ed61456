"""Images of other sets than a run's own, batch by batch, in the size that its model takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.decoded import FEW
from crsam.lab.data.decoder import Source, View
from crsam.lab.data.workers import AHEAD, Decoders, num_workers

K = TypeVar("K")
Labelled = tuple[Tensor, Tensor]
"""Bytes of shape (n, 3, H, W), in memory that the next batch may overwrite, and labels."""


class Share(NamedTuple):
    """Of the batches that there are, those of one process: every `of`-th from `first` on."""

    batch_size: int
    first: int = 0
    of: int = 1

    def slices(self, lengths: Mapping[K, int]) -> Iterator[tuple[K, slice]]:
        """Of sets of these lengths; counted through all, so that small sets are shared out too."""
        size = self.batch_size
        all_of_them = (
            (key, slice(start, start + size))
            for key, length in lengths.items()
            for start in range(0, length, size)
        )
        return islice(all_of_them, self.first, None, self.of)


def of_files(
    sets: Mapping[K, tuple[Sequence[str], Sequence[int]]], view: View, share: Share
) -> Iterator[tuple[K, Labelled]]:
    """Batches of all sets, one set after the other, each batch with the key of its set.

    They are decoded ahead, by processes of their own if there are many.

    Args:
        sets: Paths and labels.
        view: What is shown of an image.
        share: Which batches.

    Raises:
        UserError: If a file cannot be read: a score without it would be of another set.
    """
    lengths = {key: len(paths) for key, (paths, _) in sets.items()}
    parts = ((key, sets[key][0][part], sets[key][1][part]) for key, part in share.slices(lengths))
    many = sum(lengths.values()) > FEW
    with Decoders(view, share.batch_size, num_workers() if many else 0) as decoders:
        waiting: list[Any] = []

        def submit(count: int) -> None:
            for part in islice(parts, count):
                decoders.submit([Source(path) for path in part[1]], [None] * len(part[1]))
                waiting.append(part)

        submit(AHEAD)
        while waiting:
            key, paths, labels = waiting.pop(0)
            pixels, failures = decoders.collect()
            if failures:
                path, reason = paths[failures[0].position], failures[0].reason
                raise UserError(f"{path} cannot be read as an image: {reason}")
            yield key, (pixels.permute(0, 3, 1, 2), torch.tensor(labels))
            submit(1)


def of_arrays(
    sets: Mapping[K, npt.NDArray[np.uint8]], labels: npt.NDArray[np.int64], share: Share
) -> Iterator[tuple[K, Labelled]]:
    """The same of arrays of shape (N, H, W, 3), which have their labels in common."""
    for key, part in share.slices({key: len(images) for key, images in sets.items()}):
        pixels = torch.from_numpy(np.array(sets[key][part]))
        yield key, (pixels.permute(0, 3, 1, 2), torch.from_numpy(np.array(labels[part])))
