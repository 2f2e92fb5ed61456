"""Flip, crop and cutout against loops, given the same draws; and how the draws fall."""

from __future__ import annotations

import pytest
import torch

from crsam.lab.data.augment import Basic, Cutout, cut, flip, padded_crop
from lab.data.augment.samples import SIZES, assert_share, generator, random_images

every_size = pytest.mark.parametrize("size", SIZES, ids=str)


@every_size
@pytest.mark.parametrize("channels", [1, 3])
def test_basic_is_a_flip_and_a_crop_of_the_padded_image(
    size: tuple[int, int], channels: int
) -> None:
    x, basic = random_images(60, size, channels), Basic(pad=3)
    out = basic(x, generator())
    height, width = size
    for i, (flipped, top, left) in enumerate(
        zip(*(d.tolist() for d in basic.draw(x, generator())))
    ):
        padded = torch.zeros(channels, height + 6, width + 6, dtype=torch.uint8)
        for row in range(height):
            for column in range(width):
                source = width - 1 - column if flipped else column
                padded[:, 3 + row, 3 + column] = x[i, :, row, source]
        assert torch.equal(out[i], padded[:, top : top + height, left : left + width])


def test_flip_and_crop_do_nothing_where_nothing_is_drawn() -> None:
    x = random_images(4, (8, 8))
    assert torch.equal(flip(x, torch.zeros(4, dtype=torch.bool)), x)
    assert torch.equal(padded_crop(x, torch.full((4,), 2), torch.full((4,), 2), pad=2), x)
    assert torch.equal(Basic(pad=0, flip_share=0.0)(x, generator()), x)


@every_size
@pytest.mark.parametrize("side", [1, 5, 16])
def test_cutout_is_a_square_clipped_at_the_borders(size: tuple[int, int], side: int) -> None:
    x, cutout = random_images(60, size), Cutout(side, fill=(10, 20, 30))
    out = cutout(x, generator())
    for i, (row, column) in enumerate(zip(*(d.tolist() for d in cutout.draw(x, generator())))):
        expected = x[i].clone()
        top, left = max(row - side // 2, 0), max(column - side // 2, 0)
        bottom, right = row - side // 2 + side, column - side // 2 + side
        for channel, byte in enumerate((10, 20, 30)):
            expected[channel, top:bottom, left:right] = byte
        assert torch.equal(out[i], expected)


def test_cutout_takes_one_byte_for_all_channels_and_grey_images() -> None:
    x = torch.ones(2, 1, 4, 4, dtype=torch.uint8)
    assert Cutout(9, fill=(7,))(x, generator()).eq(7).all()
    with pytest.raises(ValueError, match="fill must have 1 or 1 bytes"):
        Cutout()(x, generator())


def test_half_of_the_images_flip_and_every_window_is_as_likely() -> None:
    n = 40_000
    flipped, top, left = Basic().draw(torch.empty(n, 1, 1, 1), generator())
    assert_share(flipped.sum(), n, 0.5)
    assert_share((top * 9 + left).bincount(minlength=81), n, 1 / 81)
    assert_share(Basic(flip_share=0.2).draw(torch.empty(n, 1, 1, 1), generator())[0].sum(), n, 0.2)


def test_centres_of_cutout_are_even_over_the_image() -> None:
    n = 40_000
    rows, columns = Cutout().draw(torch.empty(n, 1, 5, 7, device="cpu"), generator())
    assert_share((rows * 7 + columns).bincount(minlength=35), n, 1 / 35)


def test_cut_of_an_even_side_reaches_farther_up_and_left() -> None:
    x = torch.ones(1, 1, 6, 6, dtype=torch.uint8)
    out = cut(x, torch.tensor([3]), torch.tensor([2]), side=4)[0, 0]
    assert out.eq(0).nonzero().amin(0).tolist() == [1, 0]
    assert out.eq(0).nonzero().amax(0).tolist() == [4, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Basic(pad=-1), "pad must be a whole number of at least 0"),
        (lambda: Basic(flip_share=1.5), "flip_share must be a number between 0 and 1"),
        (lambda: Cutout(side=0), "side must be a whole number of at least 1"),
        (lambda: Cutout(fill=(300,)), "fill must hold bytes"),
    ],
)
def test_bad_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
