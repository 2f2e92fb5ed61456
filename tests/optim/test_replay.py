"""Passes of one step are the same function of the weights, and leave the first pass's buffers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import crsam
import problems
from crsam.optim.replay import Replay


class Counting(nn.Module):
    """Moves a buffer in place and replaces another at every forward."""

    moved: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moved", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.moved.add_(1)
        self.replaced = self.replaced + 1
        return x


LAYERS = {
    "batch norm": nn.BatchNorm1d(4),
    "batch norm with a cumulative mean": nn.BatchNorm1d(4, momentum=None),
    "batch norm in evaluation mode": nn.BatchNorm1d(4).eval(),
    "instance norm": nn.InstanceNorm1d(4, track_running_stats=True),
    "spectral norm": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "own buffers": Counting(),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_buffers_are_those_of_the_first_pass(layer: nn.Module) -> None:
    model = nn.Sequential(copy.deepcopy(layer), nn.Linear(4, 2))
    x = torch.randn(8, 4) if "Instance" not in type(layer).__name__ else torch.randn(8, 4, 4)
    once = copy.deepcopy(model)
    once(x)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), warmup=0, rho=0.5, model=model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    opt.step(closure)
    for name, buffer in once.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_an_exception_in_a_later_pass_leaves_the_first_passs_statistics() -> None:
    model, once = problems.conv_net(), problems.conv_net()
    (x, y), *_ = problems.batches(1)
    torch.manual_seed(0)
    once(x)
    opt = crsam.SAM(SGD(model.parameters(), lr=0.1), model=model)
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        loss = problems.cross_entropy(model(x), y).mean()
        if passes == 2:
            raise ZeroDivisionError
        loss.backward()
        return loss

    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError):
        opt.step(closure)
    for name, buffer in once.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_two_optimizers_on_one_model_nested_in_one_closure() -> None:
    """The inner step, in each pass of the outer, starts from and ends in the same statistics."""
    model = problems.conv_net()
    (x, y), *_ = problems.batches(1)
    head = list(model[-1].parameters())
    body = [p for p in model.parameters() if all(p is not q for q in head)]
    outer = crsam.SAM(SGD(body, lr=0.0), model=model)
    inner = crsam.SAM(SGD(head, lr=0.0), model=model)

    def closure() -> Tensor:
        inner.step(problems.closure_of(model, inner, x, y))
        outer.zero_grad()
        loss = problems.cross_entropy(model(x), y).mean()
        loss.backward()
        return loss

    reference = copy.deepcopy(model)
    torch.manual_seed(0)
    outer.step(closure)
    torch.manual_seed(0)
    reference(x), reference(x)  # the inner step's first pass and the outer closure's own
    for name, buffer in reference.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_gradients_for_another_optimizer_are_those_of_the_first_pass() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    model = nn.Sequential(body, nn.Tanh(), head)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    expected = torch.autograd.grad(problems.cross_entropy(model(x), y).mean(), head.weight)
    opt = crsam.CRSAM(SGD(body.parameters(), lr=0.1), warmup=0, model=model)
    other = SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        other.zero_grad()
        opt.step(problems.closure_of(model, opt, x, y))
        torch.testing.assert_close(head.weight.grad, expected[0])
        expected = torch.autograd.grad(problems.cross_entropy(model(x), y).mean(), head.weight)


def test_without_a_model_buffers_move_in_every_pass() -> None:
    model = problems.conv_net()
    (x, y), *_ = problems.batches(1)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1))
    opt.step(problems.closure_of(model, opt, x, y))
    assert model[1].num_batches_tracked == 3


def test_random_states_of_all_passes_start_alike_and_end_after_the_first() -> None:
    replay = Replay([torch.zeros(1)], None)
    torch.manual_seed(0)
    draws = []
    for size in (3, 3, 5):
        with replay.one_pass():
            draws.append(torch.rand(size))
    following = torch.rand(1)
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2][:3])
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(following, torch.rand(1))
