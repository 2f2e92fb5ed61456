"""From a set of images to the batches of an epoch: shuffled, augmented, normalised, shared out.

All that is random about a batch is a function of the seed and of the batch's number, so a run that
starts again in the middle, or on another number of processes, sees the very same batches.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.augment import Augmentation, Mixup, normalize, smooth_one_hot
from crsam.lab.data.augment.base import Draws, Nothing, check_images, draws_on, rows_of
from crsam.lab.data.images import Held, Images, Part, Shown
from crsam.lab.data.waits import Waits


class Batch(NamedTuple):
    """What a loss function is given."""

    inputs: Tensor
    """Normalised images, of shape (n, C, H, W)."""
    targets: Tensor
    """Labels of shape (n,), or probabilities of shape (n, classes)."""

    def chunks(self, count: int) -> list[Batch]:
        """The batch in `count` parts of one size."""
        return [Batch(x, y) for x, y in zip(self.inputs.chunk(count), self.targets.chunk(count))]


class Drawn(NamedTuple):
    """What is random about a batch."""

    augment: Draws
    mixup: tuple[Tensor, ...]
    """The share of each image, and the index of its partner."""


@dataclass(frozen=True)
class Feed:
    """How bytes and labels become inputs and targets."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int
    augment: Augmentation = field(default_factory=Nothing)
    mixup: float = 0.0
    """Its α; 0: none."""
    label_smoothing: float = 0.0
    dtype: torch.dtype = torch.float32

    def train(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Batch:
        """Augmented, mixed and smoothed."""
        return self.apply(images, labels, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> Drawn:
        """All that is random about a batch; only the images' shape and device are looked at."""
        draws = self.augment.draw(images, generator)
        return Drawn(draws, Mixup(self.mixup).draw(images, generator) if self.mixup else ())

    def apply(self, images: Tensor, labels: Tensor, drawn: Drawn) -> Batch:
        """The batch that these draws give; images that are there as partners only are left out."""
        augmented = self.augment.apply(check_images(images), *drawn.augment)
        x = normalize(augmented, self.mean, self.std, self.dtype)
        if not (self.mixup or self.label_smoothing):
            return Batch(x, labels)
        y = smooth_one_hot(labels, self.num_classes, self.label_smoothing, self.dtype)
        return Batch(*Mixup(self.mixup).apply(x, y, *drawn.mixup)) if self.mixup else Batch(x, y)

    def plain(self, images: Tensor, labels: Tensor) -> Batch:
        """As they are: what a model is judged on."""
        return Batch(normalize(images, self.mean, self.std, self.dtype), labels)


FILL_ABOVE = 8
"""Where more than 1/8 of a training set would not fill a batch, the last batch is filled up."""


def steps_an_epoch(num: int, batch_size: int) -> int:
    """Batches of an epoch of `num` images, all of `batch_size` images.

    Images that do not fill a batch are left out, others in every epoch. If that is more than an
    eighth of the images, one more batch takes them, filled up with images of the same epoch.

    Example:
        >>> steps_an_epoch(50_000, 128), steps_an_epoch(74, 64)
        (390, 2)
    """
    whole, left = divmod(num, batch_size)
    return whole + (FILL_ABOVE * left > num)


class Batches:
    """The training batches of one process.

    The global batch, over all processes, is the same whatever their number. Images that are held
    on the device are augmented whole, and a process keeps its share. Images that must be decoded
    are decoded by the process whose share they are, ahead of time and over the ends of epochs;
    draws are made for the whole batch, and those of the share kept. With mixup a process decodes
    the partners of its images too: of n processes, each (2 − 1/n)/n of the images, not 1/n.

    Args:
        images: The training set, on the device.
        feed: How bytes become inputs.
        batch_size: Images of a global batch, over all processes. Every batch has so many images:
            see `steps_an_epoch` for the images that do not fill one.
        seed: Of order and augmentation.
        rank: Which of the shares is this process's.
        world_size: Number of shares.

    Raises:
        UserError: If no batch can be filled, or a batch cannot be shared evenly.
    """

    def __init__(
        self,
        images: Images,
        feed: Feed,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if len(images) < batch_size:
            raise UserError(
                f"train.batch_size is {batch_size}, but there are {len(images)} training images: "
                f"set it to at most {len(images)}"
            )
        if batch_size % world_size:
            raise UserError(
                f"train.batch_size = {batch_size} cannot be shared by {world_size} processes"
            )
        self.images, self.feed = images, feed
        self.batch_size, self.seed = batch_size, seed
        each = batch_size // world_size
        self.share = slice(rank * each, (rank + 1) * each)
        self.waits = Waits(images.device)
        self._drawn: deque[Drawn] = deque()
        self._stream: Generator[Shown, None, None] | None = None
        self._next = (-1, -1)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return steps_an_epoch(len(self.images), self.batch_size)

    @property
    def uneven(self) -> str | None:
        """One line about images that an epoch leaves out or shows twice, or None."""
        num, shown = len(self.images), len(self) * self.batch_size
        if shown == num:
            return None
        what = "are left out of" if shown < num else "are shown twice in"
        return (
            f"{abs(num - shown):,} of {num:,} training images {what} every epoch, others each "
            f"time: batches have {self.batch_size} images"
        )

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from the one numbered `start` on."""
        way = self._held if isinstance(self.images, Held) else self._decoded
        with self.waits.training():
            yield from way(number, start)

    def close(self) -> None:
        """Forgets what has been decoded ahead, and ends the processes that do so."""
        if self._stream is not None:
            self._stream.close()
        self._next, self._stream = (-1, -1), None
        self._drawn.clear()

    def order(self, number: int) -> Tensor:
        """The images of an epoch, batch after batch; no image is twice in one batch."""
        every = torch.randperm(len(self.images), generator=generator(self.seed, "order", number))
        return torch.cat([every, every])[: len(self) * self.batch_size]

    def _held(self, number: int, start: int) -> Iterator[Batch]:
        parts = torch.split(self.order(number).to(self.images.device), self.batch_size)
        draws = torch.Generator(self.images.device)
        for i, part in enumerate(parts[start:], start):
            draws.manual_seed(derive(self.seed, "augment", number * len(self) + i))
            batch = self.feed.train(self.images.fetch(part), self.images.labels[part], draws)
            yield Batch(batch.inputs[self.share], batch.targets[self.share])

    def _decoded(self, number: int, start: int) -> Iterator[Batch]:
        if self._next != (number, start):
            self.close()
            most = min(2 * (self.share.stop - self.share.start), self.batch_size)
            self._stream = self.images.stream(self._parts(number, start), most)
        for i in range(start, len(self)):
            assert self._stream is not None
            with self.waits.waiting():
                shown = next(self._stream)
            self._next = divmod(number * len(self) + i + 1, len(self))
            yield self.feed.apply(
                shown.pixels, self.images.labels[shown.rows], self._drawn.popleft()
            )

    def _parts(self, number: int, start: int) -> Iterator[Part]:
        """What this process must decode, for ever; what was drawn for it is put down."""
        for epoch in itertools.count(number):
            order = torch.split(self.order(epoch), self.batch_size)
            windows = generator(self.seed, "windows", epoch)
            seeds = torch.randint(2**62, (len(self), self.batch_size), generator=windows)
            for i in range(start if epoch == number else 0, len(self)):
                rows, drawn = self._draw(epoch * len(self) + i)
                self._drawn.append(drawn)
                yield Part(order[i][rows], seeds[i][rows])

    def _draw(self, step: int) -> tuple[Tensor, Drawn]:
        """The images of a global batch that this process needs, its own first, and their draws."""
        # Drawn on the CPU: partners must be known before anything is decoded.
        like = torch.empty((), dtype=torch.uint8).expand(self.batch_size, *self.images.shape)
        augment, mixup = self.feed.draw(like, generator(self.seed, "augment", step))
        rows = torch.arange(self.batch_size)[self.share]
        if mixup:
            share, partner = mixup[0], mixup[1][self.share]
            rows = torch.cat([rows, partner[~torch.isin(partner, rows)]])
            place = torch.empty(self.batch_size, dtype=torch.int64)
            place[rows] = torch.arange(len(rows))
            mixup = (share, place[partner])
        device = self.images.device
        return rows, Drawn(draws_on(rows_of(augment, rows), device), draws_on(mixup, device))


def in_order(
    images: Images, feed: Feed, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """All images once, unchanged: every `world_size`-th batch, from the one numbered `rank` on."""
    parts = torch.split(torch.arange(len(images)), batch_size)[rank::world_size]
    for shown in images.stream(map(Part, parts), min(batch_size, len(images))):
        yield feed.plain(shown.pixels, images.labels[shown.rows])


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to those for others.

    Example:
        >>> derive(0, "order", 1) == derive(0, "order", 1) != derive(0, "order", 2)
        True
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Random numbers for one purpose, on the CPU."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
