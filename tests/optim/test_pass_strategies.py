"""Ways to run two passes: which are tried, which is kept, and what cuDNN is told meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from crsam import _tensors as tn
from crsam.lab.models import make_model
from crsam.optim import functional_probe as probe_module
from crsam.optim.functional import Functional
from crsam.optim.functional_probe import FunctionalProbe
from crsam.optim.pass_strategies import (
    STRATEGIES,
    PassStrategy,
    chosen_out_of,
    fastest,
    pass_strategies,
)
from crsam.optim.probe import Offset

CUDNN: Any = torch.backends.cudnn
IN_SEQUENCE, AT_ONCE, ANEW = STRATEGIES
FORBIDDEN = "ieee" if hasattr(CUDNN, "conv") else False


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
    assert list(pass_strategies(parallel, {torch.bfloat16})) == expected
    assert [way.at_once for way in pass_strategies(parallel, {torch.bfloat16}).values()] == [
        name != IN_SEQUENCE for name in expected
    ]


@pytest.mark.parametrize("dtypes", [set(), {torch.float32}, {torch.float32, torch.bfloat16}])
def test_cudnn_chooses_anew_only_for_convolutions_in_16_bits(dtypes: set[torch.dtype]) -> None:
    assert list(pass_strategies("auto", dtypes)) == [IN_SEQUENCE, AT_ONCE]


def test_cudnn_does_not_choose_anew_where_it_does_not_choose(monkeypatch: Any) -> None:
    assert list(pass_strategies(True, {torch.float16})) == [AT_ONCE, ANEW]
    monkeypatch.setattr(CUDNN, "benchmark", False)
    assert list(pass_strategies(True, {torch.float16})) == [AT_ONCE]


def test_who_forbids_tf32_is_left_alone() -> None:
    default = say("ieee")
    assert list(pass_strategies(True, {torch.float16})) == [AT_ONCE]
    say(default)


def test_cudnn_chooses_out_of_some_but_not_of_all() -> None:
    assert STRATEGIES[ANEW].num_choices == 3  # 0 would be all


def test_the_fastest_is_kept_and_no_more_than_two_are_there_at_a_time() -> None:
    class Made:
        alive = most = 0

        def __init__(self, way: PassStrategy) -> None:
            self.way = way
            Made.alive += 1
            Made.most = max(Made.most, Made.alive)

        def __del__(self) -> None:
            Made.alive -= 1

    for times in ([3.0, 2.0, 1.0], [3.0, 1.0, 2.0], [1.0, 2.0, 3.0]):
        by_way = dict(zip(STRATEGIES.values(), times))
        Made.most = 0
        name, made, found = fastest(STRATEGIES, Made, lambda made, by_way=by_way: by_way[made.way])
        assert made.way == STRATEGIES[name]
        assert found == dict(zip(STRATEGIES, times))
        assert found[name] == 1.0
        assert Made.most == 2
        del made
        assert Made.alive == 0


@pytest.mark.parametrize("bad", [AT_ONCE, ANEW])
def test_a_way_that_fails_takes_for_ever_but_not_the_first(bad: str) -> None:
    def make(way: PassStrategy) -> PassStrategy:
        if way == STRATEGIES[bad]:
            raise RuntimeError("out of memory")
        return way

    name, _, times = fastest(STRATEGIES, make, lambda way: -float(way.at_once))
    assert name == ({AT_ONCE, ANEW} - {bad}).pop()
    assert times[bad] == math.inf
    assert math.isfinite(times[name])
    with pytest.raises(RuntimeError, match="out of memory"):
        fastest({bad: STRATEGIES[bad], **STRATEGIES}, make, lambda way: 0.0)


def test_a_single_way_is_not_timed() -> None:
    name, made, times = fastest(pass_strategies(False, []), lambda way: way, pytest.fail)
    assert (name, made, times) == (IN_SEQUENCE, PassStrategy(), {})


@pytest.mark.parametrize("first", ["tf32", "ieee"])
def test_cudnn_is_told_otherwise_and_then_as_before(first: str) -> None:
    default = say(first)
    before = said()
    with chosen_out_of(None):
        assert said() == before
    with chosen_out_of(3):
        assert said() == (FORBIDDEN, 3)
    assert said() == before
    with pytest.raises(KeyError), chosen_out_of(3):
        raise KeyError
    assert said() == before
    say(default)


def test_passes_at_once_are_told_and_others_are_not(monkeypatch: Any) -> None:
    seen = []

    class OnAGPU(FunctionalProbe):
        def _at_once(self, sides: Any) -> Any:
            seen.append(said())
            return ()

    model = nn.Linear(2, 2)
    functional = Functional(model, lambda model, x: model(x).square().mean(), parallel=True)
    assert functional.way == STRATEGIES[AT_ONCE]
    functional.batch = torch.ones(3, 2)
    probe = OnAGPU(functional, list(model.parameters()))
    offset = Offset([torch.ones_like(p) for p in model.parameters()], 0.1)
    probe()
    probe.at([offset, -offset])  # on a CPU, one after the other
    assert not seen
    probe.params = [Fake(is_cuda=True)]  # type: ignore[list-item]
    probe.at([offset, -offset])
    functional.way = STRATEGIES[ANEW]
    probe.at([offset, -offset])
    assert seen == [said(), (FORBIDDEN, 3)]
    functional.way = STRATEGIES[IN_SEQUENCE]
    probe.params = list(model.parameters())
    probe.at([offset, -offset])
    assert len(seen) == 2


class Fake(NamedTuple):
    is_cuda: bool


class Stream:
    """Of a device that does everything at once."""

    def record_event(self) -> None: ...
    def wait_event(self, event: None) -> None: ...
    def wait_stream(self, stream: Stream) -> None: ...


class Net(nn.Module):
    """Moves a buffer when it is called, and reads another, which moves from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = make_model("resnet18", 10, width=2)
        self.register_buffer("by", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x) * self.by


def test_passes_at_once_are_the_passes_in_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(probe_module, "_side_streams", lambda device: (Stream(), Stream()))
    torch.manual_seed(0)
    model = Net().double()
    functional = Functional(model, lambda model, x: model(x).square().mean())
    functional.batch = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    for by in (1.0, 3.0):  # what the first step left behind must not be read in the second
        model.by.fill_(by)
        pairs = []
        for at_once in (False, True):
            probe = FunctionalProbe(functional, list(model.parameters()))
            first = probe()
            offset = Offset(first.grads, torch.tensor(0.01, dtype=torch.float64))
            before = {name: b.clone() for name, b in model.named_buffers()}
            pairs.append(
                probe._at_once((offset, -offset)) if at_once else probe.at([offset, -offset])
            )
            up, down = pairs[-1]
            assert up.loss > first.loss > down.loss
            assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
        for a, b in zip(*pairs):
            assert torch.equal(a.loss, b.loss)
            assert all(map(torch.equal, a.grads, b.grads))
        assert up.norms is not None
        assert torch.equal(up.norms, tn.norms(up.grads))


def test_dtypes_of_convolutions_without_asking_for_their_weights() -> None:
    conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    before = {name: b.clone() for name, b in conv.named_buffers()}
    functional = Functional(conv, lambda model, x: model(x).mean(), autocast=torch.float16)
    assert functional.convolved_in()
    assert all(torch.equal(b, before[name]) for name, b in conv.named_buffers())


@pytest.mark.parametrize(
    ("autocast", "expected"), [(None, {torch.float32}), (torch.bfloat16, {torch.bfloat16})]
)
def test_dtypes_of_convolutions(autocast: torch.dtype | None, expected: set[torch.dtype]) -> None:
    model = make_model("resnet18", 10, width=2)
    functional = Functional(model, lambda model, x: model(x).mean(), autocast=autocast)
    assert functional.convolved_in() == expected
    linear = Functional(nn.Linear(2, 2), lambda model, x: model(x).mean(), autocast=autocast)
    assert linear.convolved_in() == set()
