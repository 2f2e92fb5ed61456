"""Whatever happens on the way, model and random states are left as found, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import problems
from crsam import landscape
from curvature.test_untouched import World, batches, net

WAYS: list[dict[str, Any]] = [{}, {"batch_norm": "recomputed"}, {"at_once": 2}]


def loss_of(model: Any, batch: Any) -> Tensor:
    torch.rand(1)  # a loss may draw
    return F.cross_entropy(model(batch[0]), batch[1])


def directions(model: nn.Module) -> list[dict[str, Tensor]]:
    """Random in one, along buffers too in the other."""
    other = problems.conv_net(seed=1)
    other(batches()[0][0])
    return [*landscape.random_directions(model, 1), landscape.toward(model, other)]


@pytest.mark.parametrize("how", WAYS)
def test_leaves_everything_as_found(how: dict[str, Any]) -> None:
    model = net()
    axes = directions(model)
    momenta = [layer.momentum for layer in (model[1], model[5])]
    world = World(model)
    found = landscape.surface(model, loss_of, batches(), directions=axes, x=[0, 1], **how)
    world.check()
    assert [layer.momentum for layer in (model[1], model[5])] == momenta
    assert len(set(found.loss.flat)) == 4


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("failing_call", [0, 1, 3, 4])
def test_leaves_everything_as_found_after_an_exception(
    how: dict[str, Any], failing_call: int
) -> None:
    model, calls = net(), 0

    def failing(model: Any, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > failing_call:
            raise KeyboardInterrupt
        return loss_of(model, batch)

    axes = directions(model)
    world = World(model)
    with pytest.raises(KeyboardInterrupt):
        landscape.surface(model, failing, batches(), directions=axes, x=[-1, 0, 1], **how)
    world.check()


def test_is_the_same_whatever_the_callers_state() -> None:
    model = net()
    axes = directions(model)

    def values() -> list[float]:
        return landscape.surface(model, loss_of, batches(), directions=axes, x=[0, 1]).loss.tolist()

    expected = values()
    torch.manual_seed(1)
    with torch.autocast("cpu"):
        world = World(model)
        assert values() == expected
        world.check()
    with torch.inference_mode():
        assert values() == expected


def test_a_point_does_not_depend_on_the_points_before_it() -> None:
    """A loss that draws, a model with buffers that move in every pass."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.linear(x) * self.calls + torch.rand(1)

    model = Counting()

    def at(x: list[float]) -> Any:
        loss = lambda model, x: model(x).square().mean()  # noqa: E731
        return landscape.surface(model, loss, torch.ones(2, 3), directions=1, x=x).loss

    assert at([-1, 0, 0.5])[2] == at([0.5])[0]
