"""Batches of other sets: each image once, in its place, for as long as it is looked at."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crsam.errors import UserError
from crsam.lab.data.decoder import View
from crsam.lab.robustness import reading
from crsam.lab.robustness.reading import Share, of_arrays, of_files

SIDE = 6


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, tuple[list[str], list[int]]]:
    """Of 7, 1 and 4 images, each of a grey of its own, which is its label too."""
    found: dict[str, tuple[list[str], list[int]]] = {}
    grey = 0
    for name, count in (("a", 7), ("b", 1), ("c", 4)):
        labels = list(range(grey, grey + count))
        paths = [str(tmp_path / f"{label}.png") for label in labels]
        for path, label in zip(paths, labels):
            Image.new("RGB", (SIDE, SIDE), (label, label, label)).save(path)
        found[name], grey = (paths, labels), grey + count
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_stays_as_it_is_while_it_is_looked_at(
    workers: int, sets: dict[str, tuple[list[str], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FEW", -1 if workers else 100)
    monkeypatch.setattr(reading, "num_workers", lambda: workers)
    seen: dict[str, list[int]] = {name: [] for name in sets}
    for name, (pixels, labels) in of_files(sets, View(SIDE, SIDE), Share(2)):
        time.sleep(0.03)  # others are decoded meanwhile
        assert pixels.shape == (len(labels), 3, SIDE, SIDE)
        assert torch.equal(pixels.amin((1, 2, 3)).long(), labels)
        assert torch.equal(pixels.amax((1, 2, 3)).long(), labels)
        seen[name] += labels.tolist()
    assert seen == {name: labels for name, (_, labels) in sets.items()}


def test_ranks_take_turns_through_all_sets(sets: dict[str, tuple[list[str], list[int]]]) -> None:
    taken = [
        [label for _, (_, labels) in of_files(sets, View(SIDE, SIDE), Share(3, rank, 2))
         for label in labels.tolist()]
        for rank in range(2)
    ]  # fmt: skip
    assert taken == [[0, 1, 2, 6, 8, 9, 10], [3, 4, 5, 7, 11]]


def test_the_file_that_cannot_be_read_is_the_one_that_is_named(
    sets: dict[str, tuple[list[str], list[int]]],
) -> None:
    Path(sets["a"][0][4]).write_text("nothing")
    with pytest.raises(UserError, match=r"4\.png cannot be read as an image"):
        list(of_files(sets, View(SIDE, SIDE), Share(3)))


def test_arrays_are_cut_with_their_labels() -> None:
    labels = np.arange(5)
    images = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (5, 2, 2, 3))
    found = list(of_arrays({"x": images, "y": images}, labels, Share(2)))
    assert [(key, part[1].tolist()) for key, part in found] == [
        (key, some) for key in "xy" for some in ([0, 1], [2, 3], [4])
    ]
    for _, (pixels, some) in found:
        assert torch.equal(pixels[:, 0, 0, 0].long(), some)
