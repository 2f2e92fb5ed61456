"""The window over the micro-batches of a step, without a framework around it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam
from crsam.integrations.window import Window

METHODS = ["sam", "crsam", "rsam"]


class Task:
    """A net with batch norm and dropout, whose last layer another optimizer trains."""

    def __init__(self, method: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        self.others = list(self.model[3].parameters())
        params = [p for layer in self.model[:3] for p in layer.parameters()]
        self.opt = crsam.make(method, SGD(params, lr=0.1), model=self.model)
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(3, 8, 5, generator=g)
        self.y = torch.randint(3, (3, 8), generator=g)

    def run(self, i: int) -> Callable[[], Tensor]:
        def run() -> Tensor:
            torch.manual_seed(i)
            loss = F.cross_entropy(self.model(self.x[i]), self.y[i]) / 3
            loss.backward()
            return loss

        return run


@pytest.mark.parametrize("method", METHODS)
def test_a_step_over_a_window_is_that_of_one_closure(method: str) -> None:
    """Weights, batch-norm statistics, and the gradients that another optimizer takes."""
    task, plain = Task(method), Task(method)
    for _ in range(3):
        window = Window(task.opt)
        task.opt.zero_grad()
        for i in range(2):
            window.add(task.run(i))
        loss = task.opt.step(window.closure(task.run(2)))

        def closure() -> Tensor:
            plain.opt.zero_grad()
            return torch.stack([plain.run(i)().detach() for i in range(3)]).sum()

        assert torch.equal(loss, plain.opt.step(closure))
    ours, theirs = task.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    for a, b in zip(task.others, plain.others, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_a_micro_batch_before_the_first_pass_of_rsam_leaves_no_trace() -> None:
    task = Task("rsam")
    for p in task.others:
        p.grad = torch.ones_like(p)
    before = copy.deepcopy(task.model.state_dict())
    Window(task.opt).add(task.run(0))
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in task.others)


@pytest.mark.parametrize("method", METHODS)
def test_a_micro_batch_without_a_loss_is_left_out(method: str) -> None:
    task, plain = Task(method), Task(method)
    window = Window(task.opt)
    assert window.add(lambda: None) is None
    window.add(task.run(0))
    task.opt.step(window.closure(task.run(1)))
    window = Window(plain.opt)
    window.add(plain.run(0))
    plain.opt.step(window.closure(plain.run(1)))
    theirs = plain.model.state_dict()
    assert all(torch.equal(v, theirs[name]) for name, v in task.model.state_dict().items())
