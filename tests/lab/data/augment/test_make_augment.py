"""What holds for every augmentation that has a name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crsam.lab.data.augment import (
    AutoAugment,
    Basic,
    Chain,
    Cutout,
    Inception,
    Mixup,
    Nothing,
    RandAugment,
    augmentations,
    make_augment,
    normalize,
    smooth_one_hot,
)
from lab.data.augment.samples import generator, random_images

every_name = pytest.mark.parametrize("name", augmentations())
every_change = pytest.mark.parametrize("name", [n for n in augmentations() if n != "none"])
READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.bincount.default,
    torch.ops.aten.is_nonzero.default,
}


class NoReads(TorchDispatchMode):
    """Raises where a value, or a shape that depends on values, is read off the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        masks = "index" in str(func) and any(
            isinstance(i, Tensor) and i.dtype == torch.bool
            for arg in args
            if isinstance(arg, list | tuple)
            for i in arg
        )
        if func in READS or masks:
            raise AssertionError(f"{func} reads a value")
        return func(*args, **(kwargs or {}))


def test_names_stand_for_their_chains() -> None:
    assert make_augment("none") == Nothing()
    assert make_augment("Basic", pad=2) == Basic(pad=2)
    assert make_augment("inception", least=0.5) == Inception(0.5)
    assert make_augment("cutout", side=8) == Chain((Basic(), Cutout(8)))
    assert make_augment("auto-augment") == Chain((Basic(), AutoAugment(), Cutout(16)))
    assert make_augment("autoaugment", policy="imagenet", side=0, pad=1) == Chain(
        (Basic(1), AutoAugment("imagenet"))
    )
    assert make_augment("rand_augment", num_ops=3, magnitude=5, fill=[0]) == Chain(
        (Basic(), RandAugment(3, 5), Cutout(16, (0,)))
    )


def test_cutout_cuts_the_share_of_the_images_that_it_is_given() -> None:
    x = torch.full((4000, 1, 8, 8), 9, dtype=torch.uint8)
    always, half, never = (
        Cutout(4, (0,), share)(x, generator()).eq(0).flatten(1).sum(1) for share in (1.0, 0.5, 0.0)
    )
    assert (always > 0).all()
    assert not never.any()
    assert 1850 < (half > 0).sum() < 2150
    assert torch.equal(half[half > 0], always[half > 0])  # the squares are those of every image
    with pytest.raises(ValueError, match="share must be a number between 0 and 1, got 2"):
        Cutout(share=2)
    assert make_augment("cutout", cut_share=0.5) == Chain((Basic(), Cutout(share=0.5)))


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown augmentation 'cutuot': did you mean 'cutout'"):
        make_augment("cutuot")
    with pytest.raises(ValueError, match="there are none, basic, inception, cutout, autoaugment"):
        make_augment("zzz")
    with pytest.raises(TypeError, match="sied"):
        make_augment("cutout", sied=3)


@every_name
@pytest.mark.parametrize("channels", [1, 3])
def test_the_generator_alone_decides(name: str, channels: int) -> None:
    options = {} if name in ("none", "basic", "inception") else {"fill": (9,)}
    augment, x = make_augment(name, **options), random_images(32, (16, 12), channels)
    before = x.clone()
    torch.manual_seed(1)
    first = augment(x, generator(3))
    torch.manual_seed(2)
    assert torch.equal(augment(x, generator(3)), first)
    assert torch.equal(x, before)
    assert first.dtype == torch.uint8
    assert first.shape == x.shape
    assert (name == "none") == torch.equal(augment(x, generator(4)), first)


@every_change
def test_successive_batches_and_the_images_of_one_differ(name: str) -> None:
    augment, g = make_augment(name), generator()
    x = random_images(1, (32, 32)).expand(64, 3, 32, 32)
    first, second = augment(x, g), augment(x, g)
    assert not torch.equal(first, second)
    assert len(first.flatten(1).unique(dim=0)) > 50


@every_name
def test_an_empty_batch_stays_empty(name: str) -> None:
    x = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
    assert make_augment(name)(x, generator()).shape == x.shape


@every_name
def test_floats_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="images must be bytes"):
        make_augment(name)(torch.rand(2, 3, 32, 32), generator())


@every_name
def test_no_value_is_read_off_the_device(name: str) -> None:
    augment, x, g = make_augment(name), random_images(8, (32, 32)), generator()
    labels = torch.arange(8)
    with NoReads():
        images = normalize(augment(x, g), (0.5,), (0.25,))
        Mixup(per_image=True)(images, smooth_one_hot(labels, 8, 0.1), g)


def test_the_guard_against_reads_notices_them() -> None:
    x = torch.arange(3)
    for read in (lambda: x[0].item(), lambda: x[x > 0], lambda: x.nonzero(), lambda: bool(x[0])):
        with pytest.raises(AssertionError, match="reads a value"), NoReads():
            read()
