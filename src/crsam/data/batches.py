"""From a set of images to the batches of an epoch: shuffled, augmented, normalised, shared out.

All that is random about a batch is a function of the seed and of the batch's number, so a run that
starts again in the middle, or on another number of processes, sees the very same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from crsam.data.augment import Augmentation, Mixup, normalize, smooth_one_hot
from crsam.data.augment.base import Nothing
from crsam.data.images import Held, Images
from crsam.errors import UserError


class Batch(NamedTuple):
    """What a loss function is given."""

    inputs: Tensor
    """Normalised images, of shape (n, C, H, W)."""
    targets: Tensor
    """Labels of shape (n,), or probabilities of shape (n, classes)."""

    def chunks(self, count: int) -> list[Batch]:
        """The batch in `count` parts of one size."""
        return [Batch(x, y) for x, y in zip(self.inputs.chunk(count), self.targets.chunk(count))]


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
        x = normalize(self.augment(images, generator), self.mean, self.std, self.dtype)
        if not (self.mixup or self.label_smoothing):
            return Batch(x, labels)
        y = smooth_one_hot(labels, self.num_classes, self.label_smoothing, self.dtype)
        return Batch(*Mixup(self.mixup)(x, y, generator)) if self.mixup else Batch(x, y)

    def plain(self, images: Tensor, labels: Tensor) -> Batch:
        """As they are: what a model is judged on."""
        return Batch(normalize(images, self.mean, self.std, self.dtype), labels)


class Batches:
    """The training batches of one process.

    A global batch is fetched and augmented as a whole by every process, which then keeps its share:
    the batch is the same whatever the number of processes. That costs next to nothing where images
    are held on the device; where they must be decoded, every process decodes them all.

    Args:
        images: The training set, on the device.
        feed: How bytes become inputs.
        batch_size: Images of a global batch, over all processes. An epoch's last images that do
            not fill one are left out (others in every epoch).
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
                f"train.batch_size is {batch_size}, but there are {len(images)} training images"
            )
        if batch_size % world_size:
            raise UserError(
                f"train.batch_size = {batch_size} cannot be shared by {world_size} processes"
            )
        self.images, self.feed = images, feed
        self.batch_size, self.seed = batch_size, seed
        each = batch_size // world_size
        self.share = slice(rank * each, (rank + 1) * each)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.images) // self.batch_size

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from the one numbered `start` on."""
        device = self.images.device
        order = torch.randperm(len(self.images), generator=generator(self.seed, "order", number))
        order = order[: len(self) * self.batch_size].to(device)
        parts = torch.split(order, self.batch_size)
        draws = torch.Generator(device)
        fetched = _fetched(self.images, parts[start:])
        for i, (part, pixels) in enumerate(zip(parts[start:], fetched), start):
            draws.manual_seed(derive(self.seed, "augment", number * len(self) + i))
            batch = self.feed.train(pixels, self.images.labels[part], draws)
            yield Batch(batch.inputs[self.share], batch.targets[self.share])


def in_order(
    images: Images, feed: Feed, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """All images once, unchanged: every `world_size`-th batch, from the one numbered `rank` on."""
    order = torch.arange(len(images), device=images.device)
    parts = torch.split(order, batch_size)[rank::world_size]
    for part, pixels in zip(parts, _fetched(images, parts)):
        yield feed.plain(pixels, images.labels[part])


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


def _fetched(images: Images, parts: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The bytes of each part; what must be decoded is fetched one part ahead."""
    if isinstance(images, Held):
        yield from map(images.fetch, parts)
        return
    fetch: Callable[[Tensor], Tensor] = images.fetch
    with ThreadPoolExecutor(max_workers=1) as ahead:
        waiting = [ahead.submit(fetch, part) for part in parts[:1]]
        for following in [*parts[1:], None]:
            (ready,) = waiting
            waiting = [] if following is None else [ahead.submit(fetch, following)]
            yield ready.result()
