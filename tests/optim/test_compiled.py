"""A compiled model under a method: compiled once for all passes and steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.optim import SGD

import problems
from optim.combos import METHODS

WHOLE_BATCH = [
    name
    for name in METHODS
    if name not in ("esam", "ssam-fisher")  # they look at parts of the batch: see below
]


class Net(nn.Module):
    """Batch norm and dropout, whose buffers and draws a step puts back and replays."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(72, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def steps(name: str, model: nn.Module, loss_of: Any, num: int, per_sample: bool = False) -> Any:
    opt = METHODS[name](SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
    for t, (x, y) in enumerate(problems.batches(num, torch.float32)):
        torch.manual_seed(t)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            return loss

        opt.step(problems.samples_of(model, x, y) if per_sample else closure)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_a_compiled_model_is_compiled_once_and_whole(name: str) -> None:
    counter = CompileCounter()
    model = Net()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    steps(name, compiled, lambda x, y: F.cross_entropy(compiled(x), y), 5)
    assert counter.frame_count == 1
    plain = Net()
    steps(name, plain, lambda x, y: F.cross_entropy(plain(x), y), 5)
    for a, b in zip(model.state_dict().values(), plain.state_dict().values()):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["sam", "crsam"])
def test_a_compiled_loss_is_compiled_once_and_whole(name: str) -> None:
    counter = CompileCounter()
    model = Net()
    loss_of = torch.compile(
        lambda x, y: F.cross_entropy(model(x), y), backend=counter, fullgraph=True
    )
    steps(name, model, loss_of, 5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["esam", "ssam-fisher"])
def test_parts_of_the_batch_are_compiled_for_a_few_sizes_and_no_more(name: str) -> None:
    counter = CompileCounter()
    compiled = torch.compile(Net(), backend=counter, fullgraph=True)
    steps(name, compiled, None, 4, per_sample=True)
    early = counter.frame_count
    steps(name, compiled, None, 8, per_sample=True)
    assert counter.frame_count == early <= 4


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_a_step_that_is_compiled_is_the_same_step(name: str) -> None:
    """It is taken eagerly, and so is its closure, but for what is compiled by itself."""

    def trained(compiled: bool) -> list[Tensor]:
        model = Net()
        opt = METHODS[name](SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)

        def train(x: Tensor, y: Tensor) -> Tensor:
            def closure() -> Tensor:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return opt.step(closure)

        take = torch.compile(train, backend="eager") if compiled else train
        losses = []
        for t, (x, y) in enumerate(problems.batches(3, torch.float32)):
            torch.manual_seed(t)
            losses.append(take(x, y))
        return [*losses, *model.state_dict().values()]

    for a, b in zip(trained(compiled=True), trained(compiled=False)):
        assert torch.equal(a, b)
