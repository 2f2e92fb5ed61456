"""What goes on around CUDA graphs, with graphs that are but recordings: for machines without a GPU.

A recording takes its step anew when it is replayed, and leaves the outcome where the first one was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import crsam
from crsam.graph import captured as module
from crsam.graph.captured import NUM_EAGER, CannotCapture, Captured, Graph
from crsam.optim.functional import Functional
from crsam.optim.pass_strategies import STRATEGIES, PassStrategy


class Recording:
    is_going_on = False

    def __init__(self, owner: Recorded, way: PassStrategy) -> None:
        self.owner, self.way = owner, way
        with owner._as_it_was():
            loss, report = self.take()
        grads = [p.grad for p in owner._params()]
        self.captured = Graph(self, loss, owner.closure.extra, report, grads)  # type: ignore[arg-type]

    def take(self) -> tuple[Tensor, dict[str, Tensor]]:
        Recording.is_going_on = True
        taken = self.owner._take()
        Recording.is_going_on = False
        return taken

    def replay(self) -> None:
        params = self.owner._params()
        held, way, self.owner.closure.way = (
            [p.grad for p in params],
            self.owner.closure.way,
            self.way,
        )
        loss, report = self.take()
        self.captured.loss.copy_(loss)
        for name, value in report.items():
            self.captured.report[name].copy_(value)
        for p, into, before in zip(params, self.captured.grads, held):
            assert p.grad is not None
            assert into is not None
            into.copy_(p.grad)
            p.grad = before  # of attributes a graph knows nothing
        self.owner.closure.way = way
        self.owner.replayed.append(self.way)


class Recorded(Captured):
    """Without streams; ``fails`` and ``times`` are by way."""

    def __init__(self, *args: Any, fails: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, fuse=False, **kwargs)
        self.fails = [STRATEGIES[name] for name in fails]
        self.times = dict.fromkeys(STRATEGIES.values(), 1.0)
        self.replayed: list[PassStrategy] = []

    def _on_the_side(self) -> tuple[Tensor, dict[str, Tensor]]:
        taken = self._take()
        if self.closure.way in self.fails:
            raise RuntimeError("out of memory\nand more")
        return taken

    def _capture(self) -> Graph:
        if self.closure.way in self.fails:
            raise RuntimeError("out of memory\nand more")
        return Recording(self, self.closure.way).captured

    def _time(self, captured: Graph) -> float:
        with self._as_it_was():
            captured.graph.replay()
        return self.times[self.replayed.pop()]


@pytest.fixture(autouse=True)
def _any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "capture_blocker", lambda optimizer: None)
    monkeypatch.setattr(module, "_random_states", lambda: [torch.get_rng_state()])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Recording.is_going_on)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def net() -> nn.Module:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 4, 3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def batch_of(number: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(number)
    return torch.randn(12, 1, 6, 6, generator=g), torch.randint(3, (12,), generator=g)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def parts(autocast: Any = torch.bfloat16, **options: Any) -> tuple[nn.Module, Any, Functional]:
    """With `autocast`, which the loss does not use, convolutions are taken to be in 16 bits."""
    model = net()
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = crsam.CRSAM(base, rho=0.1, warmup=2, model=model, **options)
    functional = Functional(model, loss_fn)
    functional.batch = batch_of(0)
    functional.convolved_in = lambda: {autocast}  # type: ignore[method-assign]
    return model, optimizer, functional


def train(optimizer: Optimizer, functional: Functional, step: Callable[[], Tensor]) -> list[float]:
    """By step, the loss and the length of the gradient that was followed."""
    found = []
    for number in range(12):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
        for mine, new in zip(functional.batch, batch_of(number)):
            mine.copy_(new)
        found.append(step().item())
        grads = [p.grad for p in functional.model.parameters()]
        found.append(sum(g.square().sum() for g in grads if g is not None).sqrt().item())
    return found


def test_a_replayed_step_reports_the_radius_of_that_step() -> None:
    _, optimizer, functional = parts()
    optimizer.warmup = 10
    captured = Recorded(optimizer, functional)
    reports = []
    for _ in range(12):
        captured.step()
        reports.append(optimizer.report["rho"])
        assert reports[-1].item() == pytest.approx(0.1 * min(len(reports), 10) / 10)
    # The eager steps before the capture keep their own values.
    assert [rho.item() for rho in reports[:3]] == pytest.approx([0.01, 0.02, 0.03])


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"every": 3}, {"direction": "random"}])
@pytest.mark.parametrize("best", STRATEGIES)
def test_all_ways_are_tried_once_and_leave_no_trace(best: str, options: dict[str, Any]) -> None:
    model, optimizer, functional = parts(**options)
    captured = Recorded(optimizer, functional)
    captured.times[STRATEGIES[best]] = 0.5
    found = train(optimizer, functional, captured.step)
    expected_model, expected_optimizer, plain = parts(**options)
    expected = train(expected_optimizer, plain, lambda: expected_optimizer.step(plain))
    assert found == pytest.approx(expected, rel=1e-3)
    for a, b in zip(model.state_dict().values(), expected_model.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert captured.milliseconds == {name: 0.5 if name == best else 1.0 for name in STRATEGIES}
    assert functional.way == STRATEGIES[best]
    assert captured.is_ready
    assert optimizer.param_groups[0]["crsam_step"] == 12
    if "every" not in options:
        assert captured.replayed == [STRATEGIES[best]] * (12 - NUM_EAGER)


def tighter(optimizer: Any) -> None:
    optimizer.objective = replace(optimizer.objective, trust=0.01)


def clipped(optimizer: Any) -> None:
    optimizer.max_norm = 1e-3


def the_same(optimizer: Any) -> None:
    optimizer.objective = replace(optimizer.objective)


@pytest.mark.parametrize(("change", "starts_over"), [(tighter, 1), (clipped, 1), (the_same, 0)])
def test_what_a_graph_has_fixed_is_captured_anew_when_it_changes(
    change: Callable[[Any], None], starts_over: int
) -> None:
    _, optimizer, functional = parts()
    captured = Recorded(optimizer, functional)
    train(optimizer, functional, captured.step)
    assert len(captured.replayed) == 12 - NUM_EAGER
    change(optimizer)
    found = train(optimizer, functional, captured.step)
    _, expected_optimizer, plain = parts()
    train(expected_optimizer, plain, lambda: expected_optimizer.step(plain))
    change(expected_optimizer)
    expected = train(expected_optimizer, plain, lambda: expected_optimizer.step(plain))
    assert found == pytest.approx(expected, rel=1e-3)
    assert len(captured.replayed) == 24 - (1 + starts_over) * NUM_EAGER


def test_ways_that_fail_are_left_out_and_undone() -> None:
    one, other = (parts() for _ in range(2))
    fails = ("at once", "at once, convolutions chosen anew")
    with_failures = Recorded(*one[1:], fails=fails)
    without = Recorded(*other[1:], parallel=False)
    assert train(*one[1:], with_failures.step) == train(*other[1:], without.step)
    assert one[2].way == STRATEGIES["in sequence"]
    assert with_failures.milliseconds == dict.fromkeys(STRATEGIES, math.inf) | {"in sequence": 1.0}
    assert without.milliseconds == {}


def test_after_a_step_that_fails_everything_is_put_back() -> None:
    model, optimizer, functional = parts()
    captured = Recorded(optimizer, functional)
    captured.step()
    captured.fails = [PassStrategy()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CannotCapture, match=r"RuntimeError: out of memory$"):
        captured.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not captured.is_ready


def test_float32_convolutions_are_not_chosen_anew() -> None:
    _, optimizer, functional = parts(torch.float32)
    captured = Recorded(optimizer, functional)
    train(optimizer, functional, captured.step)
    assert list(captured.milliseconds) == ["in sequence", "at once"]


def test_methods_without_pairs_are_not_timed() -> None:
    model, _, functional = parts()
    optimizer = crsam.SAM(SGD(model.parameters(), lr=0.1), model=model)
    captured = Recorded(optimizer, functional)
    train(optimizer, functional, captured.step)
    assert captured.milliseconds == {}
    assert captured.replayed == [PassStrategy()] * (12 - NUM_EAGER)
