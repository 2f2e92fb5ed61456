"""CIFAR-10 and CIFAR-100, in their official files.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

The files are pickles, and a pickle may run any code. So they are read by an unpickler that builds
dicts, lists, numbers, text and arrays of bytes and knows nothing else: not even numpy, for which
small classes of our own stand in.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.download import Archive, obtain
from crsam.lab.data.images import Dataset, Held

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Where one of the two sets has what."""

    title: str
    archive: Archive
    train: tuple[str, ...]
    test: str
    meta: str
    labels_key: str
    names_key: str
    num_classes: int
    mean: tuple[float, float, float]
    """Of all training pixels of a channel, between 0 and 1."""
    std: tuple[float, float, float]


CIFAR10 = Layout(
    "CIFAR-10",
    Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    ),
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels_key="labels",
    names_key="label_names",
    num_classes=10,
    # Measured: 0.49140, 0.48216, 0.44653 and 0.24703, 0.24349, 0.26159. The 0.2023, 0.1994, 0.2010
    # that one also meets are means over images of each image's own deviation.
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

CIFAR100 = Layout(
    "CIFAR-100",
    Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        ("meta", "train", "test"),
    ),
    train=("train",),
    test="test",
    meta="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
    num_classes=100,
    # As published by others: we could not get the files to measure them.
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def read_cifar(layout: Layout, root: Path, *, download: bool = False) -> Dataset:
    """One of the two sets, from the folder of its files in `root`, or from `root` itself.

    Args:
        layout: `CIFAR10` or `CIFAR100`, which is read with its fine labels.
        root: Where the files are, or will be.
        download: Whether to fetch them if they are not there.

    Raises:
        UserError: If files are missing or are not what they should be.
    """
    folder = _find(layout, root)
    if folder is None and download:
        folder = obtain(layout.archive, root)
    if folder is None:
        raise UserError(
            f"no {layout.title} in {root}: there is neither {root / layout.archive.folder} nor "
            f"{root / layout.meta}; set download to true (data.download=true on the command "
            f"line), or fetch {layout.archive.address} and unpack it in {root}"
        )
    if missing := [name for name in layout.archive.files if not (folder / name).is_file()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}: {_again(layout, folder)}")
    return Dataset(
        train=_read_images(layout, folder, layout.train),
        test=_read_images(layout, folder, (layout.test,)),
        classes=_read(layout, folder / layout.meta, _class_names),
        mean=layout.mean,
        std=layout.std,
    )


def _find(layout: Layout, root: Path) -> Path | None:
    inside = root / layout.archive.folder
    if inside.is_dir():
        return inside
    return root if (root / layout.meta).is_file() else None


def _again(layout: Layout, folder: Path) -> str:
    return f"delete {folder} and get it again, with download=True or from {layout.archive.address}"


def _read_images(layout: Layout, folder: Path, names: tuple[str, ...]) -> Held:
    batches = [_read(layout, folder / name, _images_and_labels) for name in names]
    images, labels = zip(*batches)
    return Held(torch.cat(images), torch.cat(labels))


def _read(layout: Layout, file: Path, take: Callable[[Layout, dict[str, Any]], T]) -> T:
    """What `take` makes of a file's dictionary; every trouble is one line about that file."""
    try:
        return take(layout, _unpickled(file.read_bytes()))
    except _NotCifar as problem:
        raise UserError(
            f"{file} is not a {layout.title} file: {problem}; {_again(layout, file.parent)}"
        ) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


def _images_and_labels(layout: Layout, content: dict[str, Any]) -> tuple[Tensor, Tensor]:
    data = _entry(content, "data", _Array, "an array of bytes")
    labels = _entry(content, layout.labels_key, list, "a list")
    if data.shape[1:] != (3072,) or data.shape[0] == 0:
        raise _NotCifar(f"its images must be of shape (N, 3072), got {_shown(data.shape)}")
    wrong = [y for y in labels if type(y) is not int or not 0 <= y < layout.num_classes]
    if wrong:
        raise _NotCifar(
            f"its labels must be whole numbers from 0 to {layout.num_classes - 1}, got "
            f"{_shown(wrong[0])}"
        )
    if len(labels) != data.shape[0]:
        raise _NotCifar(f"it has {len(labels)} labels for {data.shape[0]} images")
    # A copy, because torch warns of memory that it must not write to.
    pixels = torch.frombuffer(bytearray(data.memory), dtype=torch.uint8)
    return pixels.view(-1, 3, 32, 32), torch.tensor(labels)


def _class_names(layout: Layout, content: dict[str, Any]) -> tuple[str, ...]:
    key, count = layout.names_key, layout.num_classes
    names = _entry(content, key, list, "a list")
    if len(names) != count or not all(isinstance(name, bytes | str) for name in names):
        raise _NotCifar(f"its {key!r} must be {count} names, got {_shown(names)}")
    return tuple(_text(name) for name in names)


def _entry(content: dict[str, Any], key: str, kind: type[T], words: str) -> T:
    if key not in content:
        raise _NotCifar(f"it has no {key!r}")
    value = content[key]
    if not isinstance(value, kind):
        raise _NotCifar(f"its {key!r} must be {words}, got {_shown(value)}")
    return value


class _NotCifar(Exception):
    """Says what is wrong with a file."""


class _ByteType:
    """Stands in for `numpy.dtype`, of which there is just the one for bytes."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise _NotCifar(f"it has an array of type {_shown(code)}, not of bytes ('u1')")

    def __setstate__(self, state: object) -> None:
        """The byte order and such, which bytes do not have."""


class _Array:
    """Stands in for a numpy array of bytes: numpy's own code sees nothing of the file."""

    shape: tuple[int, ...] = (0,)
    memory: bytes | bytearray = b""

    def __init__(self, *_: object) -> None:
        """What numpy is told before the state."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, memory = state
        if not isinstance(dtype, _ByteType) or not isinstance(memory, bytes | bytearray):
            raise _NotCifar("it has an array that is not of bytes")
        if not all(type(side) is int for side in shape) or math.prod(shape) != len(memory):
            shown = _shown(shape)
            raise _NotCifar(f"it has an array of shape {shown} with {len(memory)} bytes")
        if by_columns:
            raise _NotCifar("it has an array that is stored by columns")
        self.shape, self.memory = tuple(shape), memory


class _ArrayOfBuffer(_Array):
    """The same as pickles of protocol 5 put it."""

    def __init__(self, memory: object, dtype: object, shape: object, order: object) -> None:
        self.__setstate__((1, shape, dtype, order != "C", memory))


# All have a __setstate__: without one, a pickle could set attributes on the classes themselves.
_STAND_INS = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _ByteType,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _ArrayOfBuffer,
    "numpy._core.numeric._frombuffer": _ArrayOfBuffer,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        called = f"{module}.{name}"
        if called not in _STAND_INS:
            raise _NotCifar(f"it wants to run code, {_shown(called)}, which was not done")
        return _STAND_INS[called]


def _unpickled(raw: bytes) -> dict[str, Any]:
    try:
        _check_instructions(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except _NotCifar:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise _NotCifar(f"it is cut off or damaged ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise _NotCifar(f"it must hold a dictionary, got {_shown(content)}")
    return {_text(key): value for key, value in content.items() if isinstance(key, bytes | str)}


def _check_instructions(raw: bytes) -> None:
    """Refuses what makes the unpickler ask for far more memory than the file has bytes.

    Going through the instructions also finds lengths beyond the end of the file, before anything
    is set aside for them.
    """
    for instruction, argument, _ in pickletools.genops(raw):
        if instruction.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(raw):
            raise _NotCifar("it is damaged (it remembers more than it holds)")
        if instruction.name.startswith("EXT"):  # may be known to the unpickler without find_class
            raise _NotCifar("it wants to run code from copyreg's registry, which was not done")


def _shown(value: object) -> str:
    """A short repr, also of numbers with more digits than Python is willing to write."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return f"a huge {type(value).__name__}"


def _text(name: bytes | str) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else name
