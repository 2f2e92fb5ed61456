"""What every optimizer of the family promises, whatever its parts."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

import crsam
import problems
from crsam.optim import ByGradientNorm
from optim.combos import ALL, METHODS, Maker

every_combination = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def momentum_sgd(model: nn.Module, **options: Any) -> SGD:
    return SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, **options})


def train(
    model: nn.Module, opt: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]], first: int = 0
) -> None:
    for t, (x, y) in enumerate(data, start=first):
        torch.manual_seed(t)
        opt.step(problems.samples_of(model, x, y))


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def at_first_pass(model: nn.Module, opt: crsam.SharpnessAware) -> nn.Module:
    """A copy of the model where the next step takes its first pass: at w, but for R-SAM."""
    copied = copy.deepcopy(model)
    if opt.objective.needs_center or opt.schedule.needs_center:
        return copied
    with torch.no_grad():
        start = opt.ascent.start(opt.new_context())
        for p, move in zip(copied.parameters(), start.direction if start is not None else ()):
            p += move
    return copied


class Counted:
    """A per-sample closure that counts its passes and can fail in one of them."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, fails_in: int | None = None) -> None:
        self.passes: list[list[Tensor]] = []
        self.model, self.x, self.y, self.fails_in = model, x, y, fails_in

    def losses(self, part: Tensor | slice) -> Tensor:
        self.passes.append([p.detach().clone() for p in self.model.parameters()])
        out = self.model(self.x[part])
        if len(self.passes) - 1 == self.fails_in:
            raise KeyboardInterrupt
        return problems.cross_entropy(out, self.y[part])

    def closure(self) -> crsam.PerSample:
        return crsam.PerSample(self.losses, len(self.x))


@every_combination
def test_converges_on_a_toy_problem(make: Maker) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(32, 5, generator=g)
    y = (x[:, :2].sum(1) > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = make(SGD(model.parameters(), lr=0.2))
    losses = [opt.step(problems.samples_of(model, x, y)).item() for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]


@every_combination
def test_resumes_bit_equal_from_a_checkpoint(make: Maker) -> None:
    data = list(problems.batches(7, torch.float32))
    straight, model = problems.conv_net(torch.float32), problems.conv_net(torch.float32)
    opt = make(momentum_sgd(straight), model=straight)
    train(straight, opt, data)

    opt = make(momentum_sgd(model), model=model)
    train(model, opt, data[:3])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    resumed = problems.conv_net(torch.float32, seed=9)
    resumed.load_state_dict(saved["model"])
    opt = make(momentum_sgd(resumed, lr=1.0), model=resumed)
    opt.load_state_dict(saved["opt"])
    train(resumed, opt, data[3:], first=3)
    assert_equal(resumed.state_dict(), straight.state_dict())


@every_combination
def test_checkpoint_holds_base_state_and_method_state_and_no_scratch(make: Maker) -> None:
    model = problems.conv_net(torch.float32)
    opt = make(momentum_sgd(model), model=model)
    train(model, opt, list(problems.batches(4, torch.float32)))
    state = opt.state_dict()
    assert set(state) == {"state", "param_groups"}
    allowed = {"momentum_buffer"} | {
        "crsam_" + name
        for part in (opt.ascent, opt.objective, opt.schedule)
        for name in part.tensor_state
    }
    for entry in state["state"].values():
        assert "momentum_buffer" in entry
        assert set(entry) <= allowed
    assert state["param_groups"][0]["crsam_step"] == 4


@every_combination
def test_weights_and_state_are_as_before_when_the_closure_raises_in_any_pass(make: Maker) -> None:
    data = list(problems.batches(4, torch.float32))
    for fails_in in range(5):
        model = problems.conv_net(torch.float32)
        opt = make(momentum_sgd(model), model=model)
        train(model, opt, data[:2])
        weights = copy.deepcopy(dict(model.named_parameters()))
        state = copy.deepcopy(opt.state_dict())
        counted = Counted(model, *data[2], fails_in=fails_in)
        try:
            opt.step(counted.closure())
        except KeyboardInterrupt:
            assert_equal(dict(model.named_parameters()), weights)
            after = opt.state_dict()
            assert after["param_groups"] == state["param_groups"]
            for index, entry in state["state"].items():
                assert_equal(after["state"][index], entry)
        else:
            assert fails_in >= len(counted.passes), "a failure in a pass was swallowed"


@every_combination
def test_batch_norm_statistics_move_once(make: Maker) -> None:
    model = problems.conv_net(torch.float32)
    opt = make(momentum_sgd(model), model=model)
    for t, (x, y) in enumerate(problems.batches(4, torch.float32)):
        once = at_first_pass(model, opt)
        torch.manual_seed(t)
        once(x)
        torch.manual_seed(t)
        opt.step(problems.samples_of(model, x, y))
        assert_equal(dict(model.named_buffers()), dict(once.named_buffers()))


@every_combination
def test_one_dropout_mask_and_one_draw_of_random_numbers_per_step(make: Maker) -> None:
    masks: list[Tensor] = []

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mask = (torch.rand(x.shape[1:]) > 0.3).to(x.dtype)
            masks.append(mask)
            return x * mask

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), Masked(), nn.Linear(8, 2))
    opt = make(SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(8, 5), torch.randint(2, (8,))
    for t in range(4):
        masks.clear()
        torch.manual_seed(t)
        opt.step(problems.samples_of(model, x, y))
        assert all(torch.equal(mask, masks[0]) for mask in masks)
        after_step = torch.get_rng_state()
        torch.manual_seed(t)
        torch.rand(8)
        assert torch.equal(after_step, torch.get_rng_state())


@every_combination
def test_step_returns_the_loss_of_its_first_pass(make: Maker) -> None:
    model = problems.conv_net()
    opt = make(momentum_sgd(model), model=model)
    for t, (x, y) in enumerate(problems.batches(4)):
        torch.manual_seed(t)
        expected = problems.cross_entropy(at_first_pass(model, opt)(x), y).mean()
        torch.manual_seed(t)
        loss = opt.step(problems.samples_of(model, x, y))
        assert torch.equal(loss, expected.detach())
        assert torch.equal(opt.report["loss"], loss)
        assert all(v.ndim == 0 and not v.requires_grad for v in opt.report.values())


class NoReading(TorchDispatchMode):
    """Raises where a tensor's value is read by Python: on a GPU, the step would wait there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor's value was read"
        assert func is not torch.ops.aten.equal.default
        return func(*args, **(kwargs or {}))


@every_combination
def test_no_value_is_read_off_the_device(make: Maker) -> None:
    model = problems.conv_net(torch.float32)
    model[5].momentum = 0.1  # with a cumulative mean, torch's batch norm itself reads its count
    opt = make(momentum_sgd(model), model=model)
    if isinstance(opt.schedule, ByGradientNorm):
        pytest.skip("must decide by a number")
    for x, y in problems.batches(4, torch.float32):
        with NoReading():
            opt.step(problems.samples_of(model, x, y))


@every_method
def test_without_an_offset_it_is_the_base_optimizer(make: Maker) -> None:
    data = list(problems.batches(6))
    for base in (momentum_sgd, lambda m: AdamW(m.parameters(), lr=1e-2)):
        plain, model = problems.conv_net(), problems.conv_net()
        reference = base(plain)
        for t, (x, y) in enumerate(data):
            torch.manual_seed(t)
            problems.closure_of(plain, reference, x, y)()
            reference.step()
        opt = make(base(model), model=model, rho=0.0)
        if isinstance(opt, crsam.GSAM):
            opt.follow = None
        if isinstance(opt, crsam.RSAM):
            opt.param_groups[0]["sigma"] = 0.0  # batch-norm statistics move at the random start
        if isinstance(opt, crsam.ESAM):
            continue  # follows part of the batch, whatever the offset
        train(model, opt, data)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-10, atol=1e-10)


@every_method
def test_a_learning_rate_scheduler_on_the_wrapper_drives_the_base(make: Maker) -> None:
    model = problems.conv_net(torch.float32)
    opt = make(momentum_sgd(model, lr=0.1), model=model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=8)
    rates = []
    for x, y in problems.batches(6, torch.float32):  # warnings are errors here
        opt.step(problems.samples_of(model, x, y))
        scheduler.step()
        rates.append(opt.base.param_groups[0]["lr"])
    assert len(set(rates)) == 6
    assert rates[-1] == scheduler.get_last_lr()[0]


@every_method
def test_rho_can_be_scheduled_in_the_groups(make: Maker) -> None:
    (x, y), *_ = problems.batches(1)
    losses = []
    for rho in (0.05, 0.2):
        model = problems.conv_net()
        opt = make(momentum_sgd(model), model=model)
        opt.param_groups[0]["rho"] = rho
        torch.manual_seed(0)
        opt.step(problems.samples_of(model, x, y))
        losses.append(opt.report["loss_plus"].item())
    assert losses[0] != losses[1]


@every_method
def test_tensors_as_hyper_parameters_give_the_same(make: Maker) -> None:
    """Schedules inside a captured graph change them in place."""
    models = []
    for kind in (float, torch.tensor):
        model = problems.conv_net()
        opt = make(momentum_sgd(model), model=model)
        for key in ("rho", "alpha", "beta", "reuse"):
            if key in opt.param_groups[0]:
                opt.param_groups[0][key] = kind(opt.param_groups[0][key])
        train(model, opt, list(problems.batches(3)))
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


class TwoHeads(nn.Module):
    """One head has a gradient in the first pass only, one in the others only, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.first, self.later, self.never = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
        self.frozen = nn.Linear(4, 2).requires_grad_(False)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        h = self.body(x)
        out = self.first(h) if self.passes == 1 else self.later(h)
        return out + self.frozen(h)


@every_combination
def test_parameters_without_gradient_in_some_passes(make: Maker) -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    opt = make(SGD(model.parameters(), lr=0.1, weight_decay=0.1))
    x, y = torch.randn(8, 5), torch.randint(2, (8,))
    untouched = copy.deepcopy([*model.never.parameters(), *model.frozen.parameters()])
    for _ in range(4):
        model.passes = 0
        opt.step(problems.samples_of(model, x, y))
    for p, before in zip([*model.never.parameters(), *model.frozen.parameters()], untouched):
        assert torch.equal(p, before), "moved, by weight decay say, although it had no gradient"
    assert all(p.isfinite().all() for p in model.parameters())


@every_method
def test_a_plain_closure_gives_the_same_as_a_per_sample_one(make: Maker) -> None:
    models = []
    for per_sample in (True, False):
        model = problems.conv_net()
        opt = make(momentum_sgd(model), model=model)
        if any(p.needs_samples for p in (opt.ascent, opt.objective, opt.schedule)):
            pytest.skip("looks at single samples")
        for t, (x, y) in enumerate(problems.batches(4)):
            torch.manual_seed(t)
            opt.step(
                problems.samples_of(model, x, y)
                if per_sample
                else problems.closure_of(model, opt, x, y)
            )
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_method
def test_clipping_bounds_the_surrogate_and_nothing_before_it(make: Maker) -> None:
    (x, y), *_ = problems.batches(1)
    grads: list[list[Tensor]] = []
    for max_norm in (None, 1e-3):
        model = problems.conv_net()
        opt = make(momentum_sgd(model), model=model, max_norm=max_norm)
        torch.manual_seed(0)
        opt.step(problems.samples_of(model, x, y))
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    whole, clipped = (torch.cat([g.flatten() for g in gs]) for gs in grads)
    assert clipped.norm().item() == pytest.approx(1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), whole / whole.norm())


@every_method
def test_weights_seen_between_steps_are_never_perturbed(make: Maker) -> None:
    """A weight average taken after each step is that of the trajectory, not of the probes."""
    model = problems.conv_net(torch.float32)
    opt = make(momentum_sgd(model), model=model)
    average = torch.optim.swa_utils.AveragedModel(model)
    trajectory = []
    for x, y in problems.batches(3, torch.float32):
        opt.step(problems.samples_of(model, x, y))
        average.update_parameters(model)
        trajectory.append([p.detach().clone() for p in model.parameters()])
    for mean, *points in zip(average.module.parameters(), *trajectory):
        torch.testing.assert_close(mean, torch.stack(points).mean(0))
