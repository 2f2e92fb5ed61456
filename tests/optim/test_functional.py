"""The probe that never moves the weights gives what the closure's gives."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import crsam
import problems
from crsam import _tensors as tn
from crsam.optim import functional
from crsam.optim.functional import Functional

METHODS = [m for m in crsam.methods() if m not in ("esam", "ssam")]


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    return F.cross_entropy(logits, batch[1]), (logits.argmax(1) == batch[1]).sum()


def both_ways(method: str, base: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    moved, still = problems.conv_net(), problems.conv_net()
    one = crsam.make(method, base(moved.parameters()), model=moved, **options)
    other = crsam.make(method, base(still.parameters()), model=still, **options)
    functional = Functional(still, loss_fn)
    for t, (x, y) in enumerate(problems.batches(12)):
        torch.manual_seed(t)
        expected = one.step(problems.closure_of(moved, one, x, y))
        after = torch.get_rng_state()
        torch.manual_seed(t)
        functional.batch = (x, y)
        loss = other.step(functional)
        assert torch.equal(torch.get_rng_state(), after)
        assert torch.equal(loss, expected)
        assert functional.extra is not None
        assert one.report.keys() == other.report.keys()
    return moved, still


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "base", [lambda p: SGD(p, lr=0.05, momentum=0.9), lambda p: AdamW(p, lr=0.01)]
)
def test_it_trains_exactly_as_with_a_closure(method: str, base: Any) -> None:
    moved, still = both_ways(method, base)
    for a, b in zip(moved.state_dict().values(), still.state_dict().values()):
        assert torch.equal(a, b)  # weights and batch-norm statistics


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("direction", ["gradient", "random"])
def test_both_forms_and_directions_of_crsam(form: str, direction: str) -> None:
    moved, still = both_ways(
        "crsam", lambda p: SGD(p, lr=0.05), form=form, direction=direction, warmup=2
    )
    for a, b in zip(moved.parameters(), still.parameters()):
        assert torch.equal(a, b)


def test_the_weights_stay_where_they_are_in_every_pass() -> None:
    model = problems.conv_net()
    before = copy.deepcopy(model.state_dict())
    seen: list[bool] = []

    def watching(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(all(torch.equal(p, before[n]) for n, p in own.items()))
        return F.cross_entropy(net(batch[0]), batch[1])

    own = dict(model.named_parameters())
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.05), model=model)
    functional = Functional(model, watching)
    functional.batch = next(problems.batches(1))
    opt.step(functional)
    assert seen == [True] * 3


def test_frozen_unused_and_tied_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.unused = nn.Linear(4, 4), nn.Linear(2, 2)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.frozen = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.b(self.a(x).tanh()))

    torch.manual_seed(0)
    one = Net().double()
    other = copy.deepcopy(one)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(4, (8,))
    opts = [crsam.CRSAM(SGD(m.parameters(), lr=0.1, weight_decay=0.1)) for m in (one, other)]
    functional = Functional(other, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]))
    functional.batch = (x, y)
    for _ in range(3):
        opts[0].step(problems.closure_of(one, opts[0], x, y))
        opts[1].step(functional)
    for a, b in zip(one.parameters(), other.parameters()):
        assert torch.equal(a, b)
    assert other.unused.weight.grad is None


def test_methods_that_look_at_samples_say_what_to_use() -> None:
    model = problems.conv_net()
    opt = crsam.ESAM(SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="PerSample"):
        opt.step(Functional(model, loss_fn))


def test_calling_it_by_hand_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"opt\.step\(functional\)"):
        Functional(problems.conv_net(), loss_fn)()


@pytest.mark.parametrize("options", [{}, {"form": "linear", "every": 2}])
def test_fused_algebra_is_the_algebra(options: dict[str, Any]) -> None:
    models = [problems.conv_net(), problems.conv_net()]
    opts = [
        crsam.CRSAM(SGD(m.parameters(), lr=0.05, momentum=0.9), model=m, warmup=2, **options)
        for m in models
    ]
    closures = [Functional(m, loss_fn) for m in models]
    for t, batch in enumerate(problems.batches(8)):
        for opt, closure, fusing in zip(opts, closures, (nullcontext(), tn.fusing())):
            torch.manual_seed(t)
            closure.batch = batch
            with fusing:
                opt.step(closure)
    for a, b in zip(*(m.parameters() for m in models)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    for name, value in opts[0].report.items():
        torch.testing.assert_close(opts[1].report[name], value, rtol=1e-9, atol=1e-9)


def eagerly() -> Any:
    return torch.compiler.set_stance("force_eager")


def test_gradients_that_stay_narrow_are_weighed_wide() -> None:
    def narrow_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch[0].float())
        return F.cross_entropy(logits.float(), batch[1])

    surrogates = []
    # Compiled, sums are wide anyway; uncompiled they are as narrow as what is added.
    ways = (nullcontext(), nullcontext()), (tn.fusing(), nullcontext()), (tn.fusing(), eagerly())
    for fusing, stance in ways:
        model = problems.conv_net().float()
        base = SGD(model.parameters(), lr=0.0)
        opt = crsam.CRSAM(base, rho=3.0, form="linear", alpha=1.0, beta=0.3, trust=None, warmup=0)
        closure = Functional(model, narrow_loss, autocast=torch.bfloat16)
        closure.batch = next(problems.batches(1))
        torch.manual_seed(0)
        with fusing, stance:
            opt.step(closure)
        surrogates.append([p.grad for p in model.parameters()])
    for expected, *others in zip(*surrogates):
        for found in others:
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_equal_models_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shared has no weights of its own, and outlives the model it was made from."""
    real, compiled = torch.compile, []

    def quickly(evaluate: Any) -> Any:
        compiled.append(evaluate)
        return real(evaluate, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", quickly)
    monkeypatch.setattr(functional, "_compiled", {})
    for seed in range(3):
        weights = []
        for share in (True, False):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
            model[0].bias.requires_grad_(False)
            opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), warmup=0, model=model)
            closure = Functional(model, loss_fn, compile=share, share="test" if share else None)
            for _ in range(3):
                closure.batch = (torch.randn(8, 4), torch.randint(3, (8,)))
                opt.step(closure)
            weights.append(model.state_dict())
        for a, b in zip(weights[0].values(), weights[1].values(), strict=True):
            torch.testing.assert_close(a, b)
    assert len(compiled) == 1


class Shares(nn.Module):
    """Two parameters whose gradients autograd hands out as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(6, 3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ (self.a + self.b)).tanh()


@pytest.mark.parametrize("kind", [problems.Twice, Shares])
@pytest.mark.parametrize("method", ["sam", "crsam", "gsam", "wsam"])
def test_modules_and_gradients_that_are_there_twice(kind: type[nn.Module], method: str) -> None:
    torch.manual_seed(0)
    one = kind().double()
    other = copy.deepcopy(one)
    opts = [crsam.make(method, SGD(m.parameters(), lr=0.1), model=m) for m in (one, other)]
    functional = Functional(other, loss_fn)
    before = dict(other.named_parameters(remove_duplicate=False))
    for _ in range(4):
        x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
        opts[0].step(problems.closure_of(one, opts[0], x, y))
        functional.batch = (x, y)
        opts[1].step(functional)
    for name, p in other.named_parameters(remove_duplicate=False):
        assert p is before[name]
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_what_is_compiled_for_one_mode_is_not_used_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are batches counted that a layer does not count; a cumulative mean needs its count."""
    monkeypatch.setattr(torch, "compile", lambda evaluate: evaluate)
    monkeypatch.setattr(functional, "_compiled", {})
    for frozen, momentum in ((False, 0.1), (True, 0.1), (False, None)):
        states = []
        for share in (None, momentum or "none"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=momentum))
            model[1].train(not frozen)
            opt = crsam.SAM(SGD(model.parameters(), lr=0.1), model=model)
            closure = Functional(model, loss_fn, compile=share is not None, share=share)
            for _ in range(3):
                closure.batch = (torch.randn(8, 4), torch.randint(5, (8,)))
                opt.step(closure)
            states.append(model.state_dict())
        for a, b in zip(states[0].values(), states[1].values(), strict=True):
            torch.testing.assert_close(a, b)
        assert states[1]["1.num_batches_tracked"] == (0 if frozen else 3)


def test_every_pass_sees_buffers_as_they_are_now() -> None:
    """Here batch norm is frozen, and its statistics are set anew between steps."""
    models = [nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    opts = [crsam.CRSAM(SGD(m.parameters(), lr=0.1), model=m, warmup=0) for m in models]
    functional = Functional(models[1], loss_fn)
    for t in range(3):
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(5, (8,))
        for model in models:
            model[1].eval()
            model[1].running_mean.fill_(t)
        opts[0].step(problems.closure_of(models[0], opts[0], x, y))
        functional.batch = (x, y)
        opts[1].step(functional)
    for a, b in zip(*(m.state_dict().values() for m in models)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
