"""Batches: the same whatever the process, the number of processes and the moment of the start."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.augment import make_augment
from crsam.lab.data.batches import Batch, Batches, Feed, derive, in_order
from crsam.lab.data.images import Held, Images


def some(num: int = 50) -> Held:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num, 1, 8, 8), dtype=torch.uint8, generator=g)
    return Held(pixels, torch.arange(num) % 4)


def feed(**options: object) -> Feed:
    return Feed((0.5,), (0.25,), 4, **options)  # type: ignore[arg-type]


RICH = feed(augment=make_augment("basic", pad=2), mixup=0.5, label_smoothing=0.1)


class Slow(Images):
    """As if it had to be decoded."""

    def __init__(self, held: Held) -> None:
        self.held, self.labels = held, held.labels

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.held.shape

    def fetch(self, indices: Tensor) -> Tensor:
        return self.held.fetch(indices)

    def part(self, indices: Tensor) -> Slow:
        return Slow(self.held.part(indices))

    def to(self, device: torch.device) -> Slow:
        return self

    def with_labels(self, labels: Tensor) -> Slow:
        raise NotImplementedError


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.inputs, y.inputs) and torch.equal(x.targets, y.targets) for x, y in zip(a, b)
    )


def test_an_epoch_shows_every_image_at_most_once_and_fills_every_batch() -> None:
    images = Held(torch.arange(50, dtype=torch.uint8).view(50, 1, 1, 1), torch.arange(50))
    batches = Batches(images, feed(), 16)
    seen = torch.cat([batch.targets for batch in batches.epoch(0)])
    assert len(batches) == 3
    assert len(seen) == 48
    assert len(seen.unique()) == 48


def test_a_small_set_is_shown_whole_in_full_batches() -> None:
    images = Held(torch.arange(74, dtype=torch.uint8).view(74, 1, 1, 1), torch.arange(74))
    batches = Batches(images, feed(), 64)
    for epoch in range(3):
        parts = [batch.targets for batch in batches.epoch(epoch)]
        assert [len(part) for part in parts] == [64, 64]
        assert all(len(part.unique()) == 64 for part in parts)
        assert len(torch.cat(parts).unique()) == 74
    assert batches.uneven == (
        "54 of 74 training images are shown twice in every epoch, others each time: "
        "batches have 64 images"
    )


@pytest.mark.parametrize(
    ("num", "batch_size", "steps"),
    [
        *((1437, 64, 22), (1293, 64, 20), (1150, 64, 17), (50_000, 128, 390), (9469, 128, 73)),
        *((64, 64, 1), (65, 64, 1), (72, 64, 1), (74, 64, 2), (127, 64, 2), (3, 2, 2)),
    ],
)
def test_only_where_more_than_an_eighth_would_be_left_out_there_is_one_more_batch(
    num: int, batch_size: int, steps: int
) -> None:
    batches = Batches(some(num), feed(), batch_size)
    assert len(batches) == steps
    assert len(batches.order(0)) == steps * batch_size
    left = num - steps * batch_size
    assert (batches.uneven is None) == (left == 0)
    assert (f"{left} of" in (batches.uneven or "")) == (left > 0)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_filled_batch_is_the_same_on_any_number_of_processes_and_after_a_resume(
    world_size: int,
) -> None:
    alone = list(Batches(some(21), RICH, 8).epoch(1))
    assert len(alone) == 3
    for images in (some(21), Slow(some(21))):
        assert same(alone, list(Batches(images, RICH, 8).epoch(1)))
        assert same(alone[1:], list(Batches(images, RICH, 8).epoch(1, start=1)))
        shares = [
            list(Batches(images, RICH, 8, 0, rank, world_size).epoch(1))
            for rank in range(world_size)
        ]
        together = [
            Batch(torch.cat([b.inputs for b in parts]), torch.cat([b.targets for b in parts]))
            for parts in zip(*shares)
        ]
        assert same(alone, together)


def test_epochs_and_seeds_differ_in_their_order() -> None:
    orders = [
        tuple(torch.cat([b.targets for b in Batches(some(), feed(), 10, seed).epoch(epoch)]))
        for seed, epoch in itertools.product((0, 1), (0, 1))
    ]
    assert len({tuple(int(i) for i in order) for order in orders}) == 4


def test_an_epoch_taken_up_in_the_middle_goes_on_with_the_same_batches() -> None:
    batches = Batches(some(), RICH, 10, seed=3)
    whole = list(batches.epoch(2))
    assert same(whole[3:], list(batches.epoch(2, start=3)))
    assert not same(whole, list(batches.epoch(1)))


@pytest.mark.parametrize("world_size", [2, 5])
def test_the_shares_of_all_processes_make_up_the_batch_of_one(world_size: int) -> None:
    alone = list(Batches(some(), RICH, 10, seed=1).epoch(0))
    shares = [
        list(Batches(some(), RICH, 10, 1, rank, world_size).epoch(0)) for rank in range(world_size)
    ]
    together = [
        Batch(torch.cat([b.inputs for b in parts]), torch.cat([b.targets for b in parts]))
        for parts in zip(*shares)
    ]
    assert same(alone, together)


def test_images_that_must_be_decoded_come_in_the_same_batches() -> None:
    assert same(
        list(Batches(some(), RICH, 10).epoch(0)), list(Batches(Slow(some()), RICH, 10).epoch(0))
    )
    assert same(list(in_order(some(), feed(), 16)), list(in_order(Slow(some()), feed(), 16)))


def test_in_order_shows_all_images_unchanged_however_many_processes() -> None:
    images = some()
    parts = [list(in_order(images, RICH, 8, rank, 3)) for rank in range(3)]
    every = [b for group in itertools.zip_longest(*parts) for b in group if b is not None]
    pixels = torch.cat([b.inputs for b in every]) * 0.25 + 0.5
    torch.testing.assert_close(pixels, images.images / 255, rtol=0, atol=1e-6)
    assert torch.equal(torch.cat([b.targets for b in every]), images.labels)


def test_augmentation_differs_from_epoch_to_epoch() -> None:
    images = Held(some(1).images.repeat(16, 1, 1, 1), torch.zeros(16, dtype=torch.int64))
    flips = feed(augment=make_augment("basic", pad=2))
    (first,), (second,) = (list(Batches(images, flips, 16).epoch(e)) for e in (0, 1))
    order = [sorted(x.flatten(1).sum(1).tolist()) for x in (first.inputs, second.inputs)]
    assert order[0] != order[1]


def test_labels_stay_whole_numbers_unless_mixed_or_smoothed() -> None:
    images, labels, g = some().images, some().labels, torch.Generator()
    assert feed().train(images, labels, g).targets.dtype == torch.int64
    smoothed = feed(label_smoothing=0.2).train(images, labels, g).targets
    assert smoothed[0].tolist() == pytest.approx([0.85, 0.05, 0.05, 0.05])
    mixed = feed(mixup=1.0).train(images, labels, g).targets
    assert ((mixed > 0).sum(1) == 2).any()


def test_inputs_have_the_precision_asked_for() -> None:
    batch = next(Batches(some(), feed(dtype=torch.float64), 10).epoch(0))
    assert batch.inputs.dtype == torch.float64


def test_a_batch_is_cut_into_equal_parts() -> None:
    parts = Batch(torch.arange(6.0), torch.arange(6)).chunks(3)
    assert [p.targets.tolist() for p in parts] == [[0, 1], [2, 3], [4, 5]]


def test_too_large_or_uneven_batches_are_refused() -> None:
    with pytest.raises(UserError, match=r"batch_size is 51, but there are 50"):
        Batches(some(), feed(), 51)
    with pytest.raises(UserError, match="cannot be shared by 3 processes"):
        Batches(some(), feed(), 10, world_size=3)


def test_derived_seeds_do_not_collide() -> None:
    seeds = {derive(s, p, k) for s in range(20) for p in ("a", "b") for k in range(200)}
    assert len(seeds) == 20 * 2 * 200
