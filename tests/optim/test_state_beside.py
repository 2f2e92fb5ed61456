"""Base optimizers whose `state` holds values that belong to no parameter, as madgrad's does."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import crsam
import problems
from optim.combos import METHODS, Maker


class Counting(Optimizer):
    """SGD with momentum whose rate falls with counts in ``state["k"]`` and ``state["taken"]``."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.state["taken"] = 0  # type: ignore[index]  # pytorch_optimizer's SPAM counts in ints

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        state: dict[Any, Any] = self.state
        if "k" not in state:  # madgrad's MADGRAD counts in a tensor
            state["k"] = torch.tensor([0])
        rate = (state["k"].item() + state["taken"] + 1.0) ** -0.5
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = state[p].setdefault("momentum", torch.zeros_like(p))
                    p.add_(momentum.mul_(0.9).add_(p.grad), alpha=-rate * group["lr"])
        state["k"] += 1
        state["taken"] += 1
        return loss


def train(
    model: nn.Module, opt: Optimizer, data: list[tuple[Tensor, Tensor]], first: int = 0
) -> None:
    for t, (x, y) in enumerate(data, start=first):
        torch.manual_seed(t)
        opt.step(problems.samples_of(model, x, y))


def check_that_it_resumes(
    base: Callable[[Iterable[nn.Parameter]], Optimizer], make: Maker, steps: int = 3
) -> None:
    """Trains straight through, and with a checkpoint in between; both must end bit for bit."""
    data = list(problems.batches(2 * steps, torch.float32))
    straight, model = problems.conv_net(torch.float32), problems.conv_net(torch.float32)
    train(straight, make(base(straight.parameters()), model=straight), data)

    opt = make(base(model.parameters()), model=model)
    train(model, opt, data[:steps])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = problems.conv_net(torch.float32, seed=9)
    resumed.load_state_dict(saved["model"])
    opt = make(base(resumed.parameters()), model=resumed)
    opt.load_state_dict(saved["opt"])
    train(resumed, opt, data[steps:], first=steps)
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, straight.state_dict()[name]), name


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_a_state_that_belongs_to_no_parameter_is_saved_and_resumes_bit_equal(make: Maker) -> None:
    check_that_it_resumes(Counting, make)


def test_a_count_of_zero_is_kept() -> None:
    model = nn.Linear(2, 1)
    state = crsam.SAM(Counting(model.parameters())).state_dict()
    assert state["state"] == {"taken": 0}
    opt = crsam.SAM(Counting(model.parameters()))
    opt.state["taken"] = 7
    opt.load_state_dict(state)
    assert opt.state == {"taken": 0}


def test_a_base_with_such_a_state_can_be_wrapped_anew() -> None:
    model = problems.conv_net(torch.float32)
    base = Counting(model.parameters())
    train(model, crsam.SAM(base, model=model), list(problems.batches(2, torch.float32)))
    opt = crsam.CRSAM(base, model=model)
    assert opt.state["taken"] == 2
    assert opt.state["k"].tolist() == [2]
    train(model, opt, list(problems.batches(2, torch.float32)))
    assert opt.state["taken"] == 4


def test_a_checkpoint_of_another_method_is_still_refused() -> None:
    model = problems.conv_net(torch.float32)
    opt = crsam.CRSAM(Counting(model.parameters()), model=model)
    train(model, opt, list(problems.batches(2, torch.float32)))
    with pytest.raises(ValueError, match="checkpoint of another method"):
        crsam.SAM(Counting(model.parameters())).load_state_dict(opt.state_dict())


@pytest.mark.parametrize("name", ["madgrad", "spam", "stablespam"])
def test_such_optimizers_of_pytorch_optimizer_resume_bit_equal(name: str) -> None:
    library = pytest.importorskip("pytorch_optimizer")

    def base(params: Iterable[nn.Parameter]) -> Optimizer:
        found: Optimizer = library.load_optimizer(name)(params, lr=0.01)
        return found

    check_that_it_resumes(base, METHODS["crsam"])


def test_madgrad_resumes_bit_equal() -> None:
    library = pytest.importorskip("madgrad")
    check_that_it_resumes(lambda params: library.MADGRAD(params, lr=0.01), METHODS["crsam"])
