"""fp16 gradients under a `torch.amp.GradScaler`: on a CPU, and on CUDA where there is one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, AdamW

import crsam
import problems
from crsam.errors import UserError
from crsam.optim.functional import Functional
from optim.combos import METHODS

every_method = pytest.mark.parametrize("name", METHODS)
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
every_device = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


class Training:
    """A conv net with batch norm and dropout, its batches, and a pass whose gradient overflows."""

    def __init__(self, name: str, base: Any = None, device: str = "cpu") -> None:
        self.model = problems.conv_net(torch.float32).to(device)
        base = base or SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.opt = METHODS[name](base, model=self.model)
        self.scaler = GradScaler(device, init_scale=1024.0, growth_interval=1000)
        self.data = [(x.to(device), y.to(device)) for x, y in problems.batches(8, torch.float32)]
        self.num_passes = 0
        self.bad_pass: int | None = None

    def scaled_losses(self, x: Tensor, y: Tensor) -> crsam.PerSample:
        def losses(part: Tensor | slice) -> Tensor:
            found = problems.cross_entropy(self.model(x[part]), y[part])
            if torch.is_grad_enabled():
                self.num_passes += 1
                if self.num_passes == self.bad_pass:
                    found.register_hook(lambda g: g * torch.inf)
            return found

        return crsam.PerSample(losses, len(x))

    def step(self, t: int, scaler: GradScaler | None, bad_pass: int | None = None) -> Tensor:
        torch.manual_seed(t)
        self.num_passes, self.bad_pass = 0, bad_pass
        return self.opt.step(self.scaled_losses(*self.data[t]), scaler=scaler)

    def all_state(self) -> list[Any]:
        return copy.deepcopy([self.model.state_dict(), self.opt.state_dict()])


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@every_method
@every_device
@pytest.mark.parametrize("bad_pass", [1, 2, 3])
def test_an_overflow_in_any_pass_leaves_all_as_it_was_and_halves_the_scale(
    name: str, bad_pass: int, device: str
) -> None:
    run = Training(name, device=device)
    for t in range(2):  # so that there is momentum, a mask, a mean gradient
        run.step(t, run.scaler)
        run.scaler.update()
    before, plain = run.all_state(), copy.deepcopy(run)
    loss = run.step(2, run.scaler, bad_pass)
    if run.num_passes < bad_pass:
        pytest.skip("takes fewer passes")
    run.scaler.update()
    assert_same(run.all_state(), before)
    assert run.scaler.get_scale() == 512.0
    assert run.opt.report["overflow"] == 1
    assert loss.item() == pytest.approx(plain.step(2, None).item())
    run.step(3, run.scaler)
    run.scaler.update()
    assert run.opt.report["overflow"] == 0
    assert run.opt.param_groups[0]["crsam_step"] == 3
    assert run.scaler.get_scale() == 512.0


@every_method
@every_device
def test_without_an_overflow_scaled_steps_are_plain_steps(name: str, device: str) -> None:
    """Scales are powers of two: nothing is rounded."""
    scaled, plain = Training(name, device=device), Training(name, device=device)
    for t in range(5):
        loss = scaled.step(t, scaled.scaler)
        scaled.scaler.update()
        assert torch.equal(loss, plain.step(t, None))
    assert_same(scaled.all_state(), plain.all_state())


def trained_in(half: bool, name: str, device: str) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    opt = METHODS[name](SGD(model.parameters(), lr=0.1), model=model)
    scaler = GradScaler(device, enabled=half)
    for x, y in (tuple(t.to(device) for t in b) for b in problems.batches(20, torch.float32)):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            with torch.autocast(device, torch.float16, enabled=half):
                out = model(x.flatten(1)[:, :12])
            loss = F.cross_entropy(out.float(), y)
            scaler.scale(loss).backward()
            return loss

        opt.step(closure, scaler=scaler)
        scaler.update()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@every_device
@pytest.mark.parametrize("name", ["sam", "crsam-linear", "gsam", "looksam", "friendlysam"])
def test_a_trajectory_in_half_precision_is_that_in_single_precision_but_for_noise(
    name: str, device: str
) -> None:
    single, half = trained_in(False, name, device), trained_in(True, name, device)
    assert (single - half).norm() < 5e-3 * single.norm()
    assert not torch.equal(single, half)


def test_a_disabled_scaler_is_none() -> None:
    run, plain = Training("crsam"), Training("crsam")
    for t in range(2):
        run.step(t, GradScaler("cpu", enabled=False))
        plain.step(t, None)
    assert_same(run.all_state(), plain.all_state())


def test_an_update_that_was_forgotten_is_told() -> None:
    run = Training("sam")
    run.step(0, run.scaler)
    with pytest.raises(RuntimeError, match="since the last update"):
        run.step(1, run.scaler)


def test_micro_batches_are_scaled_by_the_step() -> None:
    x, y = torch.randn(16, 5), torch.randint(3, (16,))
    nets = []
    for scaler in (None, GradScaler("cpu", init_scale=256.0)):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), warmup=0)
        closure = crsam.MicroBatches(
            lambda part, model=model: F.cross_entropy(model(x[part]), y[part]),
            [slice(0, 8), slice(8, 16)],
        )
        opt.step(closure, scaler=scaler)
        nets.append(model.weight.detach().clone())
    assert torch.equal(*nets)


def test_what_cannot_be_scaled_is_refused() -> None:
    run = Training("sam")
    with pytest.raises(UserError, match=r"scaler must be a torch\.amp\.GradScaler, got float"):
        run.opt.step(run.scaled_losses(*run.data[0]), scaler=2.0)  # type: ignore[arg-type]
    half = nn.Linear(5, 3).half()
    opt = crsam.SAM(SGD(half.parameters(), lr=0.1))
    with pytest.raises(UserError, match="weights are float16"):
        opt.step(lambda: torch.zeros(()), scaler=run.scaler)
    lbfgs = crsam.SAM(LBFGS(run.model.parameters()))
    with pytest.raises(UserError, match="L-BFGS base cannot go with a scaler"):
        lbfgs.step(run.scaled_losses(*run.data[0]), scaler=run.scaler)
    with pytest.raises(UserError, match="a Functional cannot go with a scaler"):
        run.opt.step(Functional(run.model, lambda m, b: m(b).sum()), scaler=run.scaler)


def test_the_usual_scaler_step_says_what_to_do() -> None:
    run = Training("sam")
    loss = F.cross_entropy(run.model(run.data[0][0]), run.data[0][1])
    run.scaler.scale(loss).backward()
    with pytest.raises(TypeError, match=r"opt\.step\(closure, scaler=scaler\)"):
        run.scaler.step(run.opt)


@pytest.mark.parametrize("name", ["sam", "crsam", "asam", "looksam"])
@pytest.mark.parametrize("base", [SGD, AdamW])
def test_bfloat16_weights_train(name: str, base: type) -> None:
    model = problems.conv_net(torch.bfloat16)
    opt = METHODS[name](base(model.parameters(), lr=0.02), model=model)
    losses = []
    for x, y in problems.batches(30, torch.bfloat16):
        losses.append(opt.step(problems.closure_of(model, opt, x, y)))
        assert losses[-1].dtype == torch.float32
    assert torch.stack(losses[-5:]).mean() < torch.stack(losses[:5]).mean()
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


@every_device
def test_a_closure_that_forgot_to_scale_is_told_and_nothing_has_moved(device: str) -> None:
    model = nn.Linear(3, 2).to(device)
    before = copy.deepcopy(model.state_dict())
    opt, scaler = crsam.SAM(SGD(model.parameters(), lr=0.1)), GradScaler(device)

    def closure() -> Tensor:
        loss = model(torch.ones(4, 3, device=device)).square().mean()
        loss.backward()
        return loss

    with pytest.raises(UserError, match=r"let the closure call scaler\.scale\(loss\)\.backward"):
        opt.step(closure, scaler=scaler)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
