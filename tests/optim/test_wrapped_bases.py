"""Optimizers around another optimizer, such as Lookahead, as the base or outside."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import crsam
from optim.test_schedule_free import assert_close, assert_equal, batches, net, step, step_by_hand


class Proxy(Optimizer):
    """As such wrappers are written: torch's constructor does not run, the groups are read-only."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.defaults = optimizer.defaults
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.sign_()
        self.optimizer.step()


class SharedList(Proxy):
    """As timm's Lookahead: holds the list of groups of the optimizer inside as its own."""

    param_groups = None  # type: ignore[assignment]
    state = None

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.param_groups, self.state = optimizer.param_groups, optimizer.state  # type: ignore[method-assign]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state  # type: ignore[method-assign]


def theirs(name: str) -> Callable[[Optimizer], Any]:
    return lambda inner: getattr(pytest.importorskip("pytorch_optimizer"), name)(inner)


WRAPPERS: dict[str, Callable[[Optimizer], Any]] = {
    "read-only": Proxy,
    "shared list": SharedList,
    "TRAC": theirs("TRAC"),
    "OrthoGrad": theirs("OrthoGrad"),
}
wrappers = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def adam(model: nn.Module) -> Adam:
    return Adam(model.parameters(), lr=0.01)


@wrappers
def test_a_wrapper_as_the_base_equals_sam_by_hand(wrap: Callable[[Optimizer], Any]) -> None:
    model, twin = net(), net()
    opt, base = crsam.SAM(wrap(adam(model)), rho=0.1), wrap(adam(twin))
    for x, y in batches(6):
        step(model, opt, x, y)
        step_by_hand(twin, base, x, y, rho=0.1)
        assert_close(model, twin)


@wrappers
def test_checkpoints_groups_and_schedulers_of_such_a_base(
    wrap: Callable[[Optimizer], Any],
) -> None:
    model, inner = net(), None
    inner = adam(model)
    groups = inner.param_groups
    opt = crsam.LookSAM(wrap(inner), rho=0.1)
    assert inner.param_groups is groups
    assert groups[0]["rho"] == 0.1
    torch.optim.lr_scheduler.StepLR(opt, 1)
    for x, y in batches(3):
        step(model, opt, x, y)
    other = copy.deepcopy(model)
    resumed = crsam.LookSAM(wrap(adam(other)), rho=0.1)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for x, y in batches(6)[3:]:
        step(model, opt, x, y)
        step(other, resumed, x, y)
    assert_equal(model, other)
    opt.add_param_group({"params": [nn.Parameter(torch.ones(2).double())]})
    assert len(inner.param_groups) == 2
    assert inner.param_groups[1]["rho"] == 0.1


class _OwnForm(Proxy):
    def state_dict(self) -> dict[str, Any]:
        return {"slow": {}, "base": self.optimizer.state_dict()}


@pytest.mark.parametrize("wrap", [_OwnForm, theirs("Lookahead")], ids=["own form", "Lookahead"])
def test_a_wrapper_with_a_checkpoint_of_its_own_form_is_refused(
    wrap: Callable[[Optimizer], Any],
) -> None:
    base = wrap(adam(net()))
    name = type(base).__name__
    with pytest.raises(ValueError, match=rf"Put it outside: {name}\(crsam.SAM\(base\)\)"):
        crsam.SAM(base)
    assert "rho" not in base.param_groups[0]


def test_lookahead_outside_is_lookahead_around_sam() -> None:
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    model, twin = net(), net()
    opt = pytorch_optimizer.Lookahead(crsam.SAM(adam(model), rho=0.1), k=2, alpha=0.5)
    base = adam(twin)
    slow = [p.detach().clone() for p in twin.parameters()]
    for t, (x, y) in enumerate(batches(6), start=1):
        step(model, opt, x, y)
        step_by_hand(twin, base, x, y, rho=0.1)
        if t % 2 == 0:
            with torch.no_grad():
                for p, s in zip(twin.parameters(), slow, strict=True):
                    p.copy_(s.lerp_(p, 0.5))
        assert_close(model, twin)


def test_what_only_looks_like_an_optimizer_is_refused() -> None:
    class Wrapper:
        def __init__(self, base: Optimizer) -> None:
            self.base, self.param_groups = base, base.param_groups

        def step(self, closure: Any = None) -> None: ...

    with pytest.raises(ValueError, match=r"must be a torch\.optim\.Optimizer\. Wrapper has a step"):
        crsam.SAM(Wrapper(adam(net())))  # type: ignore[arg-type]


def test_a_base_whose_step_needs_a_closure_is_refused() -> None:
    class Asking(SGD):
        def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
            return closure()

    with pytest.raises(ValueError, match=r"Asking\.step needs a closure"):
        crsam.SAM(Asking(net().parameters(), lr=0.1))
    crsam.SAM(torch.optim.LBFGS(net().parameters()))
