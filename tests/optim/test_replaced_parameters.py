"""``load_state_dict(assign=True)`` leaves the optimizer with parameters that the model has not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam
from crsam.optim import Functional


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


X, Y = torch.ones(4, 5), torch.tensor([0, 1, 2, 0])


def step(model: nn.Module, opt: crsam.SharpnessAware) -> Tensor:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return opt.step(closure)


@pytest.mark.parametrize("knows_model", [True, False])
def test_the_error_names_assign(knows_model: bool) -> None:
    model = net()
    opt = crsam.SAM(SGD(model.parameters(), lr=0.1), model=model if knows_model else None)
    step(model, opt)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(RuntimeError, match=r"assign=True.* build the optimizer after it") as told:
        step(model, opt)
    assert ("closure" in str(told.value)) is not knows_model
    step(model, crsam.SAM(SGD(model.parameters(), lr=0.1), model=model))


def test_a_functional_names_assign_too() -> None:
    model = net()
    functional = Functional(model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]))
    functional.batch = X, Y
    opt = crsam.SAM(SGD(model.parameters(), lr=0.1))
    opt.step(functional)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(RuntimeError, match=r"4 parameters of this optimizer .*assign=True"):
        opt.step(functional)


@pytest.mark.parametrize("method", ["sam", "rsam"])
def test_a_backbone_that_was_replaced_is_pointed_out(method: str) -> None:
    """Once a step, also if the first pass is not at the weights."""
    model = net()
    opt = crsam.make(method, SGD(model.parameters(), lr=0.1), model=model)
    model[0].load_state_dict(copy.deepcopy(model[0].state_dict()), assign=True)
    with pytest.warns(UserWarning, match=r"2 of 4 parameters .* in `model`.*assign=True") as said:
        step(model, opt)
    assert len(said) == 1


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_parameters_without_a_gradient_are_otherwise_left_alone() -> None:
    """An unused head, one that the model does not have, one that another optimizer trains."""
    model, outside = TwoHeads(), nn.Linear(7, 3, bias=False)
    params: list[Any] = [*model.parameters(), *outside.parameters()]
    step(model, crsam.SAM(SGD(params, lr=0.1), model=model))
    frozen = [*model.body.parameters(), *outside.parameters()]
    step(model, crsam.SAM(SGD(frozen, lr=0.1), model=model))
