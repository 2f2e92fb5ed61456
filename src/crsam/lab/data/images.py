"""A labelled set of images, whichever way it is stored: fetched by index, as bytes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.broken import Broken


class Part(NamedTuple):
    """Some images of a set."""

    rows: Tensor
    """Which, in this order; on the CPU."""
    seeds: Tensor | None = None
    """Of what is random about each, in sets that show random windows; None: the middle."""


class Shown(NamedTuple):
    """The bytes of some images."""

    pixels: Tensor
    """Of shape (n, C, H, W)."""
    rows: Tensor
    """The images that they are of: others than were asked for, where those cannot be read."""


class Images(ABC):
    """Labelled images of one size."""

    labels: Tensor
    """Whole numbers of shape (N,), on `device`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    @abstractmethod
    def fetch(self, indices: Tensor) -> Tensor:
        """Bytes of shape (n, C, H, W), on `device`; `indices` are on it too."""

    def stream(self, parts: Iterable[Part], most: int) -> Generator[Shown, None, None]:
        """Parts of the set one after the other, the next ones made ready meanwhile.

        Args:
            parts: Taken a few ahead of what is given.
            most: Images of the largest part.
        """
        for part in parts:
            rows = part.rows.to(self.device, non_blocking=True)
            yield Shown(self.fetch(rows), rows)

    @abstractmethod
    def part(self, indices: Tensor) -> Images:
        """The set of just these images, in this order; copies none of them."""

    @abstractmethod
    def with_labels(self, labels: Tensor) -> Images:
        """The same images with other labels."""

    @abstractmethod
    def to(self, device: torch.device) -> Images:
        """The same set, fetched to another device."""

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def __len__(self) -> int:
        return len(self.labels)


class Held(Images):
    """Images that are held as bytes on the device.

    A part shares the bytes of the whole. On its way to another device it leaves the rest behind.

    Args:
        images: Bytes of shape (N, C, H, W).
        labels: Whole numbers of shape (n,).
        rows: Which n of the images are the set, in this order; None: all N.

    Example:
        >>> some = Held(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))
        >>> some.part(torch.tensor([3, 1])).labels
        tensor([3, 1])
    """

    def __init__(self, images: Tensor, labels: Tensor, rows: Tensor | None = None) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                f"images must be bytes of shape (N, C, H, W), got {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        check_labels(labels, len(images if rows is None else rows))
        self._stored, self._rows, self.labels = images, rows, labels

    @property
    def images(self) -> Tensor:
        """The bytes of all images of the set; gathered at every call where it is a part."""
        return self._stored if self._rows is None else self._stored[self._rows]

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self._stored.shape
        return channels, height, width

    def fetch(self, indices: Tensor) -> Tensor:
        return self._stored[indices if self._rows is None else self._rows[indices]]

    def part(self, indices: Tensor) -> Held:
        indices, rows = indices.to(self.device), self._rows
        if rows is None:
            rows = torch.arange(len(self), device=self.device)
        return Held(self._stored, self.labels[indices], rows[indices])

    def with_labels(self, labels: Tensor) -> Held:
        return Held(self._stored, labels.to(self.device), self._rows)

    def to(self, device: torch.device) -> Held:
        labels = self.labels.to(device)
        return self if labels.device == self.device else Held(self.images.to(device), labels)


@dataclass(frozen=True)
class Dataset:
    """Images to learn from and images to be judged on."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    """The name of each label."""
    mean: tuple[float, ...]
    """Of each channel, of pixels between 0 and 1; what `normalize` subtracts."""
    std: tuple[float, ...]
    broken: tuple[Broken, ...] = ()
    """Images that could not be read, as they are found."""
    fingerprint: str | None = None
    """Tells apart sets of photographs. None for sets whose name fixes their images."""


def split(images: Images, share: float, seed: int = 0) -> tuple[Images, Images]:
    """A set without a `share` of each class, and that share: to train on, and to choose by.

    Args:
        images: The set.
        share: Between 0 and 1. The number of images is rounded, and so is each class's, up or
            down such that they add up: up for the classes that would lose most.
        seed: Of the choice.

    Raises:
        UserError: If `share` is no share.

    Example:
        >>> some = Held(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), torch.arange(20) % 2)
        >>> rest, held_out = split(some, 0.2)
        >>> len(rest), held_out.labels.bincount()
        (16, tensor([2, 2]))
    """
    _check_share("share", share)
    labels = images.labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    out = torch.zeros(len(labels), dtype=torch.bool)
    present, sizes = torch.unique(labels, return_counts=True)
    for label, count in zip(present, _apportioned(sizes, share)):
        out[order[labels[order] == label][:count]] = True
    return images.part((~out).nonzero().flatten()), images.part(out.nonzero().flatten())


def with_wrong_labels(images: Images, share: float, num_classes: int, seed: int = 0) -> Images:
    """The same images, a `share` of them labelled as another class, each other as likely.

    Args:
        images: The set.
        share: Between 0 and 1; exactly ``round(share * len(images))`` labels are wrong.
        num_classes: Of the set.
        seed: Of the choice, which has nothing to do with that of `split` for the same seed.

    Raises:
        UserError: If `share` is no share, or there is no other class.

    Example:
        >>> some = Held(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) % 5)
        >>> (with_wrong_labels(some, 0.3, num_classes=5).labels != some.labels).sum()
        tensor(3)
    """
    _check_share("label_noise", share)
    if num_classes < 2:
        raise UserError(f"wrong labels need at least 2 classes, got {num_classes}")
    # The same stream as split's would make the images held out just those with wrong labels.
    own = random.Random(f"wrong labels {seed}").getrandbits(63)
    generator = torch.Generator().manual_seed(own)
    count = round(share * len(images))
    chosen = torch.randperm(len(images), generator=generator)[:count]
    shift = torch.randint(1, num_classes, (count,), generator=generator)
    labels = images.labels.cpu().clone()
    labels[chosen] = (labels[chosen] + shift) % num_classes
    return images.with_labels(labels.to(images.device))


def check_labels(labels: Tensor, count: int) -> None:
    """Raises ValueError unless these are `count` whole numbers."""
    whole = not labels.is_floating_point() and labels.dtype != torch.bool
    if labels.shape != (count,) or not whole:
        raise ValueError(
            f"{count} images need labels that are whole numbers of shape ({count},), got "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )


def _apportioned(sizes: Tensor, share: float) -> list[int]:
    """Of each class its share, rounded such that they add up: by largest remainder."""
    exact = share * sizes.double()
    counts = exact.floor().long()
    missing = round(share * int(sizes.sum())) - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:missing]] += 1
    return counts.tolist()


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UserError(f"{name} must be between 0 and 1, got {share}")
