"""Algebra on lists of tensors against the same on one long vector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crsam import _tensors as tn
from crsam.optim.context import times

settings.register_profile("first calls are slow", deadline=None)
settings.load_profile("first calls are slow")


@st.composite
def tensor_lists(draw: st.DrawFn, num: int = 1) -> list[list[Tensor]]:
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    return [[torch.randn(s, dtype=torch.float64, generator=g) for s in shapes] for _ in range(num)]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


@given(tensor_lists(num=2))
def test_norm_and_dot_are_those_of_the_long_vector(lists: list[list[Tensor]]) -> None:
    a, b = lists
    torch.testing.assert_close(tn.norm(a), flat(a).norm())
    torch.testing.assert_close(tn.dot(a, b), flat(a) @ flat(b))


@given(tensor_lists(num=2), st.floats(-2, 2))
def test_combinations_are_those_of_the_long_vector(lists: list[list[Tensor]], x: float) -> None:
    a, b = lists
    expected = (1 - x) * flat(a) + x * flat(b)
    torch.testing.assert_close(flat(tn.mix_(tn.clone(a), tn.clone(b), x)), expected)
    torch.testing.assert_close(flat(tn.add_(tn.clone(a), b, x)), flat(a) + x * flat(b))


@given(tensor_lists(), st.floats(-2, 2))
def test_every_form_of_scale_gives_the_same(lists: list[list[Tensor]], x: float) -> None:
    (a,) = lists
    tensor = torch.tensor(x, dtype=torch.float64)
    for scale in (x, tensor, [x] * len(a), [tensor] * len(a)):
        torch.testing.assert_close(flat(tn.scale_(tn.clone(a), scale)), x * flat(a))
        torch.testing.assert_close(
            flat(tn.scale_(tn.clone(a), times(scale, tensor))), x * x * flat(a)
        )


@given(tensor_lists(), st.floats(0, 1))
def test_top_mask_keeps_the_largest_of_all(lists: list[list[Tensor]], share: float) -> None:
    (a,) = lists
    count = round(share * flat(a).numel())
    mask = flat(tn.top_mask(a, count))
    assert mask.sum() == count
    if 0 < count < len(mask):
        assert flat(a)[mask].min() >= flat(a)[~mask].max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_low_precision_tensors_are_float32_and_do_not_overflow(dtype: torch.dtype) -> None:
    big = [torch.full((100, 100), 300.0, dtype=dtype)]
    assert tn.norm(big).dtype == torch.float32
    assert tn.norm(big).item() == pytest.approx(30_000)
    assert tn.dot(big, big).item() == pytest.approx(9e8)


def test_norms_of_mixed_dtypes_are_in_their_places() -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]
    tensors = [torch.full((4,), float(i), dtype=dtype) for i, dtype in enumerate(dtypes)]
    assert tn.norms(tensors).tolist() == [0.0, 2.0, 4.0, 6.0]


def test_nothing_divided_by_nothing_is_nothing() -> None:
    assert tn.safe_reciprocal(torch.tensor(0.0)) == 0
    assert tn.safe_reciprocal(torch.tensor(4.0)) == 0.25


def test_long_lists_are_compiled_piece_by_piece_and_equal_pieces_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = []
    compile = torch.compile

    def counted(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return compile(function, **options)

    monkeypatch.setattr(torch, "compile", counted)

    @tn.fused
    def mixed(
        a: list[Tensor], b: list[Tensor], by: list[Tensor], to: tuple[Any, ...], shift: Tensor
    ) -> list[Tensor]:
        return [(x * s + y - shift).to(d) for x, y, s, d in zip(a, b, by, to, strict=True)]

    g = torch.Generator().manual_seed(0)
    shapes = [(3,), (2, 2)] * (tn.LONGEST + 3)
    a, b = ([torch.randn(s, generator=g) for s in shapes] for _ in range(2))
    by, shift = [torch.tensor(0.1 * i) for i in range(len(a))], torch.tensor(0.25)
    to = (torch.float64, torch.bfloat16) * (len(a) // 2)
    with tn.fusing():
        found = mixed(a, b, by, to, shift)
    assert len(compiled) == 2  # two whole pieces alike, and a rest
    for x, y in zip(found, mixed(a, b, by, to, shift), strict=True):
        torch.testing.assert_close(x, y)


def test_numbers_that_change_are_not_compiled_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: compiled.append(f) or f)

    @tn.fused
    def scaled(a: list[Tensor], by: float) -> list[Tensor]:
        return [x * by for x in a]

    with tn.fusing():
        found = [scaled([torch.ones(2)], 0.1 * i)[0][0].item() for i in range(9)]
    assert found == pytest.approx([0.1 * i for i in range(9)])
    assert len(compiled) == 1
