"""Ways to run two passes: which are tried, which is kept, and what cuDNN is told meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from crsam.models import make_model
from crsam.optim.functional import Functional
from crsam.optim.ways import WAYS, Way, chosen_out_of, fastest, ways

CUDNN: Any = torch.backends.cudnn
IN_SEQUENCE, AT_ONCE, ANEW = WAYS


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CUDNN, "benchmark", True)
    before = said()
    yield
    assert said() == before


def said() -> tuple[Any, ...]:
    precision = CUDNN.conv.fp32_precision if hasattr(CUDNN, "conv") else CUDNN.allow_tf32
    return precision, CUDNN.benchmark_limit


def say(precision: str) -> str:
    """Tells cuDNN; what it had been told before."""
    if hasattr(CUDNN, "conv"):
        before, CUDNN.conv.fp32_precision = CUDNN.conv.fp32_precision, precision
        return before
    before, CUDNN.allow_tf32 = CUDNN.allow_tf32, precision == "tf32"
    return "tf32" if before else "ieee"


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [("auto", [IN_SEQUENCE, AT_ONCE, ANEW]), (True, [AT_ONCE, ANEW]), (False, [IN_SEQUENCE])],
)
def test_ways_to_be_tried(parallel: Any, expected: list[str]) -> None:
    assert list(ways(parallel, {torch.bfloat16})) == expected
    assert [way.at_once for way in ways(parallel, {torch.bfloat16}).values()] == [
        name != IN_SEQUENCE for name in expected
    ]


@pytest.mark.parametrize("dtypes", [set(), {torch.float32}, {torch.float32, torch.bfloat16}])
def test_cudnn_chooses_anew_only_for_convolutions_in_16_bits(dtypes: set[torch.dtype]) -> None:
    assert list(ways("auto", dtypes)) == [IN_SEQUENCE, AT_ONCE]


def test_cudnn_does_not_choose_anew_where_it_does_not_choose(monkeypatch: Any) -> None:
    monkeypatch.setattr(CUDNN, "benchmark", False)
    assert list(ways(True, {torch.float16})) == [AT_ONCE]


def test_the_fastest_is_kept_and_no_more_than_two_are_there_at_a_time() -> None:
    class Made:
        alive = most = 0

        def __init__(self, way: Way) -> None:
            self.way = way
            Made.alive += 1
            Made.most = max(Made.most, Made.alive)

        def __del__(self) -> None:
            Made.alive -= 1

    for times in ([3.0, 2.0, 1.0], [3.0, 1.0, 2.0], [1.0, 2.0, 3.0]):
        by_way = dict(zip(WAYS.values(), times))
        Made.most = 0
        name, made, found = fastest(WAYS, Made, lambda made, by_way=by_way: by_way[made.way])
        assert made.way == WAYS[name]
        assert found == dict(zip(WAYS, times))
        assert found[name] == 1.0
        assert Made.most == 2
        del made
        assert Made.alive == 0


def test_a_single_way_is_not_timed() -> None:
    name, made, times = fastest(ways(False, []), lambda way: way, pytest.fail)
    assert (name, made, times) == (IN_SEQUENCE, Way(), {})


@pytest.mark.parametrize("first", ["tf32", "ieee"])
def test_cudnn_is_told_otherwise_and_then_as_before(first: str) -> None:
    default = say(first)
    before = said()
    with chosen_out_of(None):
        assert said() == before
    with chosen_out_of(3):
        assert said()[0] != before[0]
        assert said()[1] == 3
    assert said() == before
    with pytest.raises(KeyError), chosen_out_of(3):
        raise KeyError
    assert said() == before
    say(default)


@pytest.mark.parametrize(
    ("autocast", "expected"), [(None, {torch.float32}), (torch.bfloat16, {torch.bfloat16})]
)
def test_dtypes_of_convolutions(autocast: torch.dtype | None, expected: set[torch.dtype]) -> None:
    model = make_model("resnet18", 10, width=2)
    functional = Functional(model, lambda model, x: model(x).mean(), autocast=autocast)
    assert functional.convolved_in() == expected
    linear = Functional(nn.Linear(2, 2), lambda model, x: model(x).mean(), autocast=autocast)
    assert linear.convolved_in() == set()
