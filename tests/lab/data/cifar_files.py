"""Small files in CIFAR's layouts, as Python 2 wrote the official ones and as Python 3 does."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crsam.lab.data.cifar import CIFAR10, Layout

Dump = Callable[[dict[str, Any]], bytes]


# Written out, so that the reader's own names are tested against them.
BATCHES = {
    10: [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
    100: ["train", "test"],
}
META = {10: "batches.meta", 100: "meta"}
LABELS = {10: "labels", 100: "fine_labels"}
NAMES = {10: "label_names", 100: "fine_label_names"}


def write_cifar(
    folder: Path, layout: Layout = CIFAR10, *, each: int = 4, dump: Dump | None = None
) -> None:
    """All files of a set with `each` images in every batch."""
    folder.mkdir(parents=True)
    dump = dump or python3(4)
    kind = layout.num_classes
    for i, name in enumerate(BATCHES[kind]):
        (folder / name).write_bytes(dump(batch(layout, each, seed=i)))
    names = [f"class {i}" for i in range(kind)]
    meta = {"coarse_label_names": ["coarse"] * 20, NAMES[kind]: names, "num_vis": 3072}
    (folder / META[kind]).write_bytes(dump(meta))


def batch(layout: Layout = CIFAR10, each: int = 4, seed: int = 0) -> dict[str, Any]:
    """The dictionary of a batch; CIFAR-100's has coarse labels too, which are not to be read."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(layout.num_classes, size=each).tolist()
    return {
        "batch_label": "training batch",
        LABELS[layout.num_classes]: labels,
        "coarse_labels": [y // 5 for y in labels],
        "data": draw.integers(256, size=(each, 3072)).astype(np.uint8),
        "filenames": [f"{i}.png" for i in range(each)],
    }


def expected(layout: Layout, seeds: list[int], each: int = 4) -> tuple[Tensor, list[int]]:
    """Images and labels of batches, pixel by pixel."""
    batches = [batch(layout, each, seed) for seed in seeds]
    images = torch.zeros(len(seeds) * each, 3, 32, 32, dtype=torch.uint8)
    rows = np.concatenate([b["data"] for b in batches])
    for channel in range(3):
        for y in range(32):
            start = 1024 * channel + 32 * y
            images[:, channel, y] = torch.from_numpy(rows[:, start : start + 32])
    return images, [label for b in batches for label in b[LABELS[layout.num_classes]]]


def python3(protocol: int, *, as_bytes: bool = True) -> Dump:
    """Keys and names as bytes or as text."""

    def dump(content: dict[str, Any]) -> bytes:
        return pickle.dumps(_encoded(content) if as_bytes else content, protocol)

    return dump


def _encoded(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, dict):
        return {_encoded(key): _encoded(item) for key, item in value.items()}
    return value


def python2(content: dict[str, Any]) -> bytes:
    """Protocol 2 with byte strings and the old names of numpy, instruction by instruction."""
    return b"\x80\x02" + _python2(content) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(_python2(item) for item in value) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(x) for item in value.items() for x in item) + b"u"
    assert isinstance(value, np.ndarray)
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = _python2(value.shape[0]) + _python2(value.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01|NNN" + _python2(-1) + _python2(-1) + b"K\x00tb"
    memory = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
    return made + b"(K\x01" + shape + dtype + b"\x89" + memory + b"tb"
