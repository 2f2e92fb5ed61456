"""Batches of images that must be decoded: each process decodes its own, and all see one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch

from crsam.lab.data.augment import Chain, Cutout, Flip, Inception, RandAugment
from crsam.lab.data.batches import Batch, Batches, Feed, in_order
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Part, Shown
from lab.data.photos import write_photos

RICH = Chain((Flip(), RandAugment(), Cutout(4)))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    root = write_photos(tmp_path_factory.mktemp("photos"), train=10)
    found = read_folder(root, image_size=12, windows=Inception(), workers=0).train
    assert isinstance(found, Decoded)
    return found


def feed(mixup: float = 0.0) -> Feed:
    return Feed((0.5,), (0.25,), 3, RICH, mixup, label_smoothing=0.1)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The images that were asked for, batch by batch."""
    asked: list[list[int]] = []
    real = Decoded.stream

    def stream(self: Decoded, parts: Iterable[Part], most: int) -> Iterator[Shown]:
        for shown in real(self, parts, most):
            assert len(shown.rows) <= most
            asked.append(shown.rows.tolist())
            yield shown

    monkeypatch.setattr(Decoded, "stream", stream)
    return asked


@pytest.mark.parametrize("world_size", [2, 3, 6])
@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_the_shares_of_all_processes_make_up_the_batch_of_one(
    images: Decoded, mixup: float, world_size: int
) -> None:
    alone = list(Batches(images, feed(mixup), 6, seed=1).epoch(1))
    shares = [
        list(Batches(images, feed(mixup), 6, 1, rank, world_size).epoch(1))
        for rank in range(world_size)
    ]
    for whole, *parts in zip(alone, *shares, strict=True):
        assert torch.equal(whole.inputs, torch.cat([part.inputs for part in parts]))
        assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_a_small_set_is_decoded_whole_in_full_batches(images: Decoded, mixup: float) -> None:
    alone = Batches(images, feed(mixup), 8, seed=1)
    whole = list(alone.epoch(1))
    assert len(images) == 30
    assert [len(batch.inputs) for batch in whole] == [8, 8, 8, 8]
    assert alone.order(1).bincount(minlength=30).min() == 1  # every image is shown
    resumed = list(Batches(images, feed(mixup), 8, seed=1).epoch(1, start=3))
    assert torch.equal(resumed[0].inputs, whole[3].inputs)
    shares = [list(Batches(images, feed(mixup), 8, 1, rank, 2).epoch(1)) for rank in range(2)]
    for one, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(one.inputs, torch.cat([part.inputs for part in parts]))
        assert torch.equal(one.targets, torch.cat([part.targets for part in parts]))


def test_a_process_decodes_its_own_images_alone(images: Decoded, decoded: list[list[int]]) -> None:
    batches = Batches(images, feed(), 6, rank=1, world_size=3)
    list(batches.epoch(0))
    order = batches.order(0).view(5, 6)
    assert decoded == order[:, 2:4].tolist()


def test_with_mixup_it_decodes_the_partners_too_and_no_image_twice(
    images: Decoded, decoded: list[list[int]]
) -> None:
    batches = Batches(images, feed(0.4), 6, rank=1, world_size=3)
    list(batches.epoch(0))
    for asked, order in zip(decoded, batches.order(0).view(5, 6), strict=True):
        assert asked[:2] == order[2:4].tolist()
        assert len(set(asked)) == len(asked) <= 4
        assert set(asked) <= set(order.tolist())


def test_an_epoch_taken_up_in_the_middle_goes_on_with_the_same_batches(images: Decoded) -> None:
    batches = Batches(images, feed(0.4), 6, seed=3)
    whole = [*batches.epoch(1), *batches.epoch(2)]
    again = [*Batches(images, feed(0.4), 6, seed=3).epoch(1, start=2), *batches.epoch(2)]
    assert same(whole[2:], again)
    assert not same(whole[:5], whole[5:])


def test_decoding_goes_on_over_the_end_of_an_epoch(
    images: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = Decoded.stream
    monkeypatch.setattr(
        Decoded, "stream", lambda self, parts, most: (started.append(1), real(self, parts, most))[1]
    )
    batches = Batches(images, feed(), 6)
    for epoch in range(3):
        assert len(list(batches.epoch(epoch))) == 5
    assert len(started) == 1
    next(batches.epoch(7))  # given up: what was made ready for the next one is not the next epoch's
    first = list(batches.epoch(3))
    assert same(first, list(Batches(images, feed(), 6).epoch(3)))
    assert len(started) == 4


def test_windows_differ_from_epoch_to_epoch_and_from_seed_to_seed(images: Decoded) -> None:
    one = images.part(torch.zeros(6, dtype=torch.int64))  # six times the same photograph
    seen = [
        x.sum().item()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
        for batch in Batches(one, Feed((0.5,), (0.25,), 3), 6, seed).epoch(epoch)
        for x in batch.inputs
    ]
    assert len(set(seen)) == len(seen) == 18


def test_without_windows_the_middles_are_shown_in_training_too(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = write_photos(tmp_path_factory.mktemp("middles"))
    lazy, held = (
        read_folder(root, image_size=12, hold=hold, workers=0).train for hold in (False, True)
    )
    assert same(*(list(Batches(images, feed(0.4), 6).epoch(1)) for images in (lazy, held)))


def test_in_order_shows_the_middle_of_all_images_however_many_processes(images: Decoded) -> None:
    whole = list(in_order(images, feed(), 30))
    assert torch.equal(whole[0].targets, images.labels)
    parts = [list(in_order(images, feed(), 7, rank, 2)) for rank in range(2)]
    every = [parts[i % 2][i // 2] for i in range(5)]
    assert torch.equal(torch.cat([b.inputs for b in every]), whole[0].inputs)


def test_time_that_is_waited_is_counted(images: Decoded) -> None:
    batches = Batches(images, feed(), 6)
    list(batches.epoch(0))
    assert 0 < batches.waits.waited < batches.waits.seconds
    again = Batches(images, feed(), 6)
    again.waits.load_state_dict(batches.waits.state_dict())
    under_way = again.epoch(1)
    next(under_way)  # within an epoch, where runs are stopped, both are up to date
    assert again.waits.waited - batches.waits.waited < again.waits.seconds - batches.waits.seconds


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.inputs, y.inputs) and torch.equal(x.targets, y.targets) for x, y in zip(a, b)
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_are_the_same_and_waits_are_those_of_the_device(images: Decoded) -> None:
    flips = Feed((0.5,), (0.25,), 3, Flip(), mixup=0.4)
    here = Batches(images, flips, 6)
    there = Batches(images.to(torch.device("cuda")), flips, 6)
    busy = torch.randn(4096, 4096, device="cuda")
    for a, b in zip(here.epoch(0), there.epoch(0), strict=True):
        torch.testing.assert_close(a.inputs, b.inputs.cpu(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.targets, b.targets.cpu(), rtol=1e-5, atol=1e-5)
        for _ in range(20):  # far more than it takes to decode six images
            busy = busy @ busy / 64
    torch.cuda.synchronize()
    assert 0 < there.waits.waited < there.waits.seconds
