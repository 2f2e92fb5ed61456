"""Schedule-free bases: ``train()`` and ``eval()`` are the base's, and SAM is SAM around them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import crsam

schedulefree = pytest.importorskip("schedulefree")
BASES: dict[str, Callable[[Iterable[Tensor]], Any]] = {
    "AdamW": lambda params: schedulefree.AdamWScheduleFree(params, lr=0.05, weight_decay=0.01),
    "SGD": lambda params: schedulefree.SGDScheduleFree(params, lr=0.5, warmup_steps=3),
    "RAdam": lambda params: schedulefree.RAdamScheduleFree(params, lr=0.05),
}
bases = pytest.mark.parametrize("make", BASES.values(), ids=BASES)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 5, generator=g).double(), torch.randint(3, (16,), generator=g))
        for _ in range(num)
    ]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


def step_by_hand(model: nn.Module, base: Optimizer, x: Tensor, y: Tensor, rho: float) -> None:
    """SAM, in the words of its paper."""
    base.zero_grad()
    loss_of(model, x, y)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    with torch.no_grad():
        before = [p.clone() for p in model.parameters()]
        for p, g in zip(model.parameters(), grads, strict=True):
            p += rho * g / norm
    base.zero_grad()
    loss_of(model, x, y)
    with torch.no_grad():
        for p, w in zip(model.parameters(), before, strict=True):
            p.copy_(w)
    base.step()


def step(model: nn.Module, opt: crsam.SharpnessAware, x: Tensor, y: Tensor) -> None:
    def closure() -> Tensor:
        opt.zero_grad()
        return loss_of(model, x, y)

    opt.step(closure)


def assert_close(a: nn.Module, b: nn.Module) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    assert all(map(torch.equal, a.parameters(), b.parameters()))


@bases
def test_sam_equals_sam_by_hand_through_switches_and_a_resume(make: Any) -> None:
    model, twin = net(), net()
    opt: Any = crsam.SAM(make(model.parameters()), rho=0.1)
    base = make(twin.parameters())
    for t, (x, y) in enumerate(batches(12)):
        opt.train()
        base.train()
        step(model, opt, x, y)
        step_by_hand(twin, base, x, y, rho=0.1)
        assert_close(model, twin)
        if t % 3 == 2:
            at_y = copy.deepcopy(model)
            opt.eval()
            base.eval()
            assert_close(model, twin)
            if t > 5:  # RAdam averages nothing before
                assert not any(map(torch.equal, model.parameters(), at_y.parameters()))
        if t == 5:  # in eval mode
            file = io.BytesIO()
            torch.save([model.state_dict(), opt.state_dict()], file)
            weights, state = torch.load(io.BytesIO(file.getvalue()))
            model = net()
            model.load_state_dict(weights)
            opt = crsam.SAM(make(model.parameters()), rho=0.1)
            opt.load_state_dict(state)


@bases
@pytest.mark.parametrize("method", ["crsam", "looksam", "friendlysam"])
def test_a_run_that_was_stopped_in_train_mode_ends_as_one_that_was_not(
    method: str, make: Any
) -> None:
    model, whole = net(), net()
    opt: Any = crsam.make(method, make(model.parameters()), rho=0.1)
    unstopped: Any = crsam.make(method, make(whole.parameters()), rho=0.1)
    for t, (x, y) in enumerate(batches(8)):
        for m, o in ((model, opt), (whole, unstopped)):
            o.train()
            step(m, o, x, y)
        if t == 3:
            state = copy.deepcopy(opt.state_dict())
            opt = crsam.make(method, make(model.parameters()), rho=0.1)
            opt.load_state_dict(state)
    opt.eval()
    unstopped.eval()
    assert_equal(model, whole)


@bases
def test_copies_switch_their_own_base(make: Any) -> None:
    model = net()
    opt: Any = crsam.SAM(make(model.parameters()))
    opt.train()
    for x, y in batches(8):
        step(model, opt, x, y)
    other, copied = copy.deepcopy((model, opt))
    copied.eval()
    assert not any(map(torch.equal, model.parameters(), other.parameters()))
    opt.eval()
    assert_equal(model, other)


def test_a_base_without_the_two_modes_has_none_of_them() -> None:
    opt: Any = crsam.CRSAM(torch.optim.SGD(net().parameters(), lr=0.1))
    for name in ("train", "eval"):
        assert not hasattr(opt, name)
        with pytest.raises(AttributeError, match=f"'SGD' object has no attribute '{name}'"):
            getattr(opt, name)
    assert not hasattr(object.__new__(crsam.SAM), "train")  # as in an unpickler


class _Overwriting(torch.optim.SGD):
    """Overwrites the gradients, as schedulefree's AdamW and OrthoGrad do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.fill_(1e9)


@pytest.mark.parametrize("method", [m for m in crsam.methods() if m != "esam"])
def test_no_method_keeps_the_gradient_that_a_base_overwrites(method: str) -> None:
    ends = []
    for kind in (torch.optim.SGD, _Overwriting):
        model = net()
        hyper = {"every": 3} if method == "crsam" else {}
        opt = crsam.make(method, kind(model.parameters(), lr=0.1), **hyper)
        for x, y in batches(8):
            step(model, opt, x, y)
        ends.append(model)
    assert_equal(*ends)
