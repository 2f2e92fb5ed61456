"""Datasets and what is done to their images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from crsam._names import named
from crsam.errors import UserError
from crsam.lab.data.augment import Inception
from crsam.lab.data.cifar import CIFAR10, CIFAR100, read_cifar
from crsam.lab.data.digits import read_digits
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Dataset, Held, Images, split, with_wrong_labels
from crsam.lab.data.random import read_random
from crsam.lab.data.tiny_imagenet import read_tiny_imagenet

__all__ = ["Dataset", "Held", "Images", "datasets", "load", "split", "with_wrong_labels"]


class _Reader(NamedTuple):
    read: Callable[..., Dataset]
    """Is given the root and the options it takes."""
    takes: tuple[str, ...] = ()


_OF_FOLDERS = ("image_size", "hold", "windows", "middle", "draft", "workers")
_READERS = {
    "digits": _Reader(lambda root: read_digits()),
    "cifar10": _Reader(partial(read_cifar, CIFAR10), ("download",)),
    "cifar100": _Reader(partial(read_cifar, CIFAR100), ("download",)),
    "tiny_imagenet": _Reader(read_tiny_imagenet, ("image_size",)),
    "folder": _Reader(read_folder, _OF_FOLDERS),
    "random": _Reader(read_random, ("image_size",)),
}


def datasets() -> list[str]:
    """The names that `load` takes.

    Example:
        >>> datasets()
        ['digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'folder', 'random']
    """
    return list(_READERS)


def load(
    name: str,
    root: str | Path = "data",
    *,
    image_size: int | None = None,
    label_noise: float = 0.0,
    seed: int = 0,
    download: bool = False,
    hold: bool | None = None,
    windows: Inception | None = None,
    middle: float | None = None,
    draft: bool | None = None,
    workers: int | None = None,
) -> Dataset:
    """A dataset by its name, whatever its case, dashes or underscores.

    Args:
        name: ``"digits"``: scikit-learn's, for which no files are needed; ``"cifar10"`` and
            ``"cifar100"``: their official files; ``"tiny_imagenet"``: its folders or zip files;
            ``"folder"``: ``root/train/CLASS`` and ``root/val/CLASS``, archives of them, or
            ``root/CLASS``;
            ``"random"``: noise.
        root: Where the files are.
        image_size: Of all but CIFAR and digits: side of the square that images are scaled to; see
            `read_folder`.
        label_noise: Share of the training labels that are wrong; see `with_wrong_labels`.
        seed: Of the wrong labels, and of nothing else.
        download: Of CIFAR: whether to fetch files that are not there.
        hold: Of ``"folder"``, as what follows: whether to hold all images in memory. None: if they
            fit, and no random windows are asked for.
        windows: Which random windows of photographs are shown in training; see `read_folder`.
        middle: Share of a photograph's shorter side that is shown where nothing is random.
        draft: Whether JPEGs may be decoded smaller than they are. None: for random
            windows.
        workers: Processes that decode. None: as many as there are cores for them.

    Raises:
        UserError: If there is no such set, it does not take an option, or its files are missing
            or wrong.

    Example:
        >>> load("digits", label_noise=0.3).test.labels.bincount()
        tensor([36, 37, 35, 37, 36, 36, 36, 36, 35, 36])
    """
    reader = named("dataset", name, _READERS)
    given = {
        "image_size": image_size,
        "download": download or None,
        "hold": hold,
        "windows": windows,
        "middle": middle,
        "draft": draft,
        "workers": workers,
    }
    asked = {option: value for option, value in given.items() if value is not None}
    for option, value in asked.items():
        if option not in reader.takes:
            others = ", ".join(other for other, its in _READERS.items() if option in its.takes)
            raise UserError(
                f"{option} = {value!r} makes no sense for the dataset {name!r}, only for {others}"
            )
    dataset = reader.read(Path(root).expanduser(), **asked)
    if label_noise:
        noisy = with_wrong_labels(dataset.train, label_noise, len(dataset.classes), seed)
        dataset = replace(dataset, train=noisy)
    return dataset
