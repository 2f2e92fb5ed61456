"""Every operation against Pillow, byte for byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crsam.lab.data.augment import Op, apply_op, cut, flip, normalize, padded_crop
from lab.data.augment.pillow_ops import by_pillow
from lab.data.augment.samples import SIZES, random_images, random_magnitudes

every_op = pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name.lower())
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


@every_size
@every_op
def test_equals_pillow(op: Op, size: tuple[int, int]) -> None:
    x, magnitudes = random_images(80, size), random_magnitudes(op, 80)
    expected = by_pillow(x, torch.full((80,), op), magnitudes)
    assert torch.equal(apply_op(x, op, magnitudes), expected)


@every_op
def test_equals_pillow_on_grey_images(op: Op) -> None:
    x, magnitudes = random_images(40, (17, 12), channels=1), random_magnitudes(op, 40)
    expected = by_pillow(x, torch.full((40,), op), magnitudes)
    assert torch.equal(apply_op(x, op, magnitudes), expected)


@pytest.mark.parametrize("degrees", [-180, -90, -30, -27, -3, 0, 3, 27, 30, 60, 90, 180])
def test_round_angles_equal_pillow(degrees: int) -> None:
    x = random_images(4, (32, 32))
    expected = by_pillow(x, torch.full((4,), Op.ROTATE), torch.full((4,), float(degrees)))
    assert torch.equal(apply_op(x, Op.ROTATE, float(degrees)), expected)


@pytest.mark.parametrize("factor", [-0.5, 0.0, 0.1, 1.0, 1.9])
@pytest.mark.parametrize("op", [Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.SHARPNESS])
def test_special_factors_equal_pillow(op: Op, factor: float) -> None:
    x = random_images(4, (16, 16))
    expected = by_pillow(x, torch.full((4,), op), torch.full((4,), factor))
    assert torch.equal(apply_op(x, op, factor), expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    low=st.integers(0, 255),
    high=st.integers(0, 255),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    op=st.sampled_from([Op.AUTOCONTRAST, Op.EQUALIZE, Op.SHARPNESS, Op.CONTRAST]),
)
def test_any_range_of_bytes_and_any_size_equals_pillow(
    low: int, high: int, height: int, width: int, op: Op
) -> None:
    low, high = sorted((low, high))
    g = torch.Generator().manual_seed(height * width)
    x = torch.randint(low, high + 1, (2, 3, height, width), generator=g).byte()
    magnitudes = torch.tensor([0.3, 1.7], dtype=torch.float64)
    expected = by_pillow(x, torch.full((2,), op), magnitudes)
    assert torch.equal(apply_op(x, op, magnitudes), expected)


def mixed_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ops = torch.arange(160) % len(Op)
    magnitudes = torch.stack([random_magnitudes(Op(o), 160)[i] for i, o in enumerate(ops.tolist())])
    return random_images(160, (20, 20)), ops, magnitudes


def test_each_image_gets_its_own_operation_and_magnitude() -> None:
    x, ops, magnitudes = mixed_batch()
    before = x.clone()
    assert torch.equal(apply_op(x, ops, magnitudes), by_pillow(x, ops, magnitudes))
    assert torch.equal(x, before)


def test_operations_left_out_do_not_matter() -> None:
    x, _, magnitudes = mixed_batch()
    some = (Op.INVERT, Op.COLOR, Op.SHEAR_X)
    ops = torch.tensor([some[i % 3] for i in range(160)])
    expected = apply_op(x, ops, magnitudes)
    assert torch.equal(apply_op(x, ops, magnitudes, among=some), expected)


def test_memory_layout_does_not_matter() -> None:
    x, ops, magnitudes = mixed_batch()
    expected = apply_op(x, ops, magnitudes)
    channels_last = x.to(memory_format=torch.channels_last)
    assert torch.equal(apply_op(channels_last, ops, magnitudes), expected)
    repeated = apply_op(x[:1].expand(3, 3, 20, 20), Op.EQUALIZE)
    assert torch.equal(repeated[2:], apply_op(x[:1], Op.EQUALIZE))


def test_other_fills_are_possible() -> None:
    x = torch.full((1, 3, 4, 4), 9, dtype=torch.uint8)
    out = apply_op(x, Op.TRANSLATE_X, 3.0, fill=7)
    assert out[..., 0].eq(9).all()
    assert out[..., 1:].eq(7).all()


def test_what_follows_the_draws_compiles_without_a_break() -> None:
    x, ops, magnitudes = mixed_batch()
    places = ops % 5
    for function, args in (
        (apply_op, (ops, magnitudes)),
        (flip, (ops > 3,)),
        (padded_crop, (places, places)),
        (cut, (places, places, 4, (1, 2, 3))),
        (normalize, ((0.5,), (0.25,))),
    ):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, *args), function(x, *args))


def test_what_is_no_byte_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.uint8"):
        apply_op(torch.rand(2, 3, 4, 4), Op.INVERT)
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        apply_op(torch.zeros(2, 2, 4, 4, dtype=torch.uint8), Op.COLOR, 0.5)
