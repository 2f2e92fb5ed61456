"""Sets of images: their parts, their labels, how they are split, and loading by name."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crsam.errors import UserError
from crsam.lab import data
from crsam.lab.data import Held, datasets, load, split, with_wrong_labels
from crsam.lab.data.images import Images

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)
SHARES = st.floats(0, 1)


def held(labels: Tensor) -> Held:
    """Each image is its number, in base 256."""
    n = torch.arange(len(labels))
    return Held(torch.stack([n // 256, n % 256], 1).byte().view(-1, 2, 1, 1), labels)


def numbers(images: Images) -> list[int]:
    x = images.fetch(torch.arange(len(images))).long()
    return (256 * x[:, 0] + x[:, 1]).flatten().tolist()


def test_fetch_gives_images_in_the_order_asked_for() -> None:
    some = held(torch.arange(5))
    assert some.fetch(torch.tensor([4, 0, 4]))[:, 1].flatten().tolist() == [4, 0, 4]
    assert (len(some), some.shape) == (5, (2, 1, 1))


def test_parts_of_parts_are_parts_of_the_whole() -> None:
    part = held(10 + torch.arange(6)).part(torch.tensor([5, 3, 1])).part(torch.tensor([2, 0, 0]))
    assert numbers(part) == [1, 5, 5]
    assert part.labels.tolist() == [11, 15, 15]
    assert part.images[:, 1].flatten().tolist() == [1, 5, 5]


def test_a_part_may_be_chosen_by_a_mask() -> None:
    some = held(torch.arange(4))
    mask = torch.tensor([True, False, False, True])
    assert numbers(some.part(mask)) == [0, 3]
    assert numbers(some.part(mask).part(torch.tensor([False, True]))) == [3]


def test_a_part_copies_no_images_and_leaves_the_rest_behind_when_it_moves() -> None:
    whole = Held(torch.zeros(100, 3, 8, 8, dtype=torch.uint8), torch.zeros(100, dtype=torch.long))
    part = whole.part(torch.arange(10)).part(torch.arange(5))
    assert part._stored.data_ptr() == whole._stored.data_ptr()
    assert part.to(torch.device("cpu")) is part
    elsewhere = part.to(torch.device("meta"))
    assert elsewhere.device.type == "meta"
    assert elsewhere._stored.shape == (5, 3, 8, 8)


def test_other_labels_leave_the_set_as_it_is() -> None:
    some = held(torch.arange(4)).part(torch.tensor([3, 1]))
    other = some.with_labels(torch.tensor([7, 8]))
    assert (other.labels.tolist(), some.labels.tolist()) == ([7, 8], [3, 1])
    assert numbers(other) == [3, 1]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.arange(2), "must be bytes .* got torch.float32"),
        (torch.zeros(2, 3, 4).byte(), torch.arange(2), "must be bytes"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.arange(3), "2 images need labels"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2), "got torch.float32"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 1).long(), "of shape"),
    ],
)
def test_what_is_no_labelled_set_is_refused(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Held(images, labels)
    with pytest.raises(ValueError, match="4 images need labels"):
        held(torch.arange(4)).with_labels(torch.arange(3))


@given(labels=LABELS, share=SHARES, seed=st.integers(0, 3))
def test_split_is_disjoint_and_complete_and_keeps_the_order(
    labels: Tensor, share: float, seed: int
) -> None:
    rest, out = split(held(labels), share, seed)
    assert sorted(numbers(rest) + numbers(out)) == list(range(len(labels)))
    for part in (rest, out):
        assert numbers(part) == sorted(numbers(part))
        assert part.labels.tolist() == labels[numbers(part)].tolist()


@given(labels=LABELS, share=SHARES)
def test_split_takes_the_share_of_each_class_up_to_rounding(labels: Tensor, share: float) -> None:
    _, out = split(held(labels), share)
    assert len(out) == round(share * len(labels))
    for label, size in zip(*labels.unique(return_counts=True)):
        exact = share * size.item()
        got = (out.labels == label).sum().item()
        assert math.floor(exact + 1e-9) <= got <= math.ceil(exact - 1e-9)


def test_split_takes_of_small_classes_too() -> None:
    _, out = split(held(torch.arange(100).repeat(2)), 0.2)  # 0.4 of an image of each class
    assert len(out) == 40
    assert len(out.labels.unique()) == 40


def test_split_is_the_same_for_a_seed_and_another_for_another() -> None:
    some = held(torch.arange(300) % 3)
    chosen = [numbers(split(some, 0.3, seed)[1]) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_split_chooses_evenly_within_a_class() -> None:
    some = held(torch.zeros(10, dtype=torch.long))
    counts = torch.zeros(10)
    for seed in range(400):
        counts[numbers(split(some, 0.3, seed)[1])] += 1
    assert (counts / 400 - 0.3).abs().max() < 4.5 * math.sqrt(0.3 * 0.7 / 400)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(UserError, match="share must be between 0 and 1, got"):
        split(held(torch.arange(4)), share)
    with pytest.raises(UserError, match="label_noise must be between 0 and 1, got"):
        load("digits", label_noise=share)


@given(labels=LABELS, share=SHARES, seed=st.integers(0, 3))
def test_just_the_share_of_labels_is_wrong(labels: Tensor, share: float, seed: int) -> None:
    before = labels.clone()
    noisy = with_wrong_labels(held(labels), share, 5, seed)
    assert (noisy.labels != labels).sum() == round(share * len(labels))
    assert ((noisy.labels >= 0) & (noisy.labels < 5)).all()
    assert torch.equal(labels, before)
    assert numbers(noisy) == list(range(len(labels)))


def test_wrong_labels_fall_evenly_on_images_and_on_the_other_classes() -> None:
    n = 40_000
    labels = torch.arange(n) % 4
    noisy = with_wrong_labels(held(labels), 0.5, 4).labels
    wrong = noisy != labels
    for label in range(4):
        mine = labels == label
        assert wrong[mine].double().mean() == pytest.approx(0.5, abs=0.025)
        others = noisy[mine & wrong].bincount(minlength=4) / (mine & wrong).sum()
        for other in set(range(4)) - {label}:
            assert others[other].item() == pytest.approx(1 / 3, abs=0.03)


def test_wrong_labels_are_the_same_for_a_seed_and_others_for_another() -> None:
    some = held(torch.arange(300) % 3)
    drawn = [with_wrong_labels(some, 0.3, 3, seed).labels.tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_images_held_out_have_no_more_wrong_labels_than_the_rest() -> None:
    labels = torch.arange(4000) % 4
    some = with_wrong_labels(held(labels), 0.3, 4, seed=0)
    _, out = split(some.with_labels(labels), 0.3, seed=0)
    wrong = some.labels[numbers(out)] != labels[numbers(out)]
    assert wrong.double().mean() == pytest.approx(0.3, abs=0.06)


def test_a_single_class_has_no_wrong_labels() -> None:
    with pytest.raises(UserError, match="at least 2 classes, got 1"):
        with_wrong_labels(held(torch.zeros(3, dtype=torch.long)), 0.5, num_classes=1)


def test_names() -> None:
    assert datasets() == ["digits", "cifar10", "cifar100", "tiny_imagenet", "folder", "random"]
    with pytest.raises(UserError, match="unknown dataset 'cifar': did you mean 'cifar1"):
        load("cifar")


def test_label_noise_is_in_the_training_labels_alone() -> None:
    clean, noisy = load("digits"), load("Digits", label_noise=0.25, seed=3)
    assert (clean.train.labels != noisy.train.labels).sum() == round(0.25 * 1437)
    assert torch.equal(clean.test.labels, noisy.test.labels)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "digits",
            {"image_size": 32},
            "image_size = 32 .* only for tiny_imagenet, folder",
        ),
        ("cifar10", {"image_size": 64}, "image_size = 64 makes no sense for the dataset 'cifar10'"),
        ("cifar100", {"hold": False}, "hold = False makes no sense"),
        ("digits", {"download": True}, "only for cifar10, cifar100"),
        ("folder", {"download": True}, "download = True makes no sense for the dataset 'folder'"),
    ],
)
def test_options_without_sense_for_a_set_are_refused(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(name, tmp_path, **options)


def test_augmentations_and_sets_live_in_one_package() -> None:
    import crsam.lab.data.augment

    assert crsam.lab.data.augment.augmentations()
    assert all(hasattr(data, name) for name in data.__all__)


def test_a_set_can_be_pickled() -> None:
    part = held(torch.arange(5)).part(torch.tensor([4, 2]))
    assert numbers(pickle.loads(pickle.dumps(part))) == [4, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_set_on_the_gpu_gives_the_bytes_of_the_cpu() -> None:
    part = held(torch.arange(500) % 10).part(torch.arange(499, 0, -3))
    there = part.to(torch.device("cuda"))
    indices = torch.tensor([3, 0, 7])
    assert torch.equal(there.fetch(indices.cuda()).cpu(), part.fetch(indices))
    assert torch.equal(split(there, 0.2)[1].labels.cpu(), split(part, 0.2)[1].labels)
    assert there.to(torch.device("cuda")) is there
