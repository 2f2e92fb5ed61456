"""Whole steps as CUDA graphs: the same training, and what cannot be captured says why."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import crsam
from crsam.graph.captured import CannotCapture, Captured, capture_blocker
from crsam.lab.data.batches import Batch
from crsam.lab.models import ResNet
from crsam.lab.train import captured as train_captured
from crsam.lab.train.captured import CapturedStep
from crsam.lab.train.step import EagerStep
from crsam.optim.functional import Functional
from crsam.optim.pass_strategies import STRATEGIES

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
METHODS: dict[str, dict[str, Any]] = {
    "sgd": {},
    # Without a warm-up: while ρ is tiny, d2 is rounding noise, and so is what the log form does.
    "crsam": {"rho": 0.3, "warmup": 0},
    "crsam, every other step": {"rho": 0.3, "warmup": 0, "every": 2},
    "sam": {},
    "asam": {},
    "gsam": {},
    "looksam": {},
    "friendlysam": {},
    "wsam": {"gamma": 0.4},
    "rsam": {"sigma": 0.05, "total_steps": 20},
    "crsam, a random direction": {"rho": 0.3, "direction": "random", "form": "linear"},
}


def net(device: str = "cuda") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        # No bias before batch norm: its gradient is rounding noise, which LookSAM would blow up.
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 5),
    ).to(device)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(32, 3, 8, 8, generator=g), torch.randint(5, (32,), generator=g)
    return x.cuda() + y.cuda().view(-1, 1, 1, 1) / 2, y.cuda()


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    return F.cross_entropy(logits, batch[1]), (logits.argmax(1) == batch[1]).sum()


def optimizer_of(method: str, model: nn.Module, base: Any = None, **options: Any) -> Any:
    base = base or (lambda p: SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3))
    built = base(model.parameters())
    name = method.partition(",")[0]
    return built if method == "sgd" else crsam.make(name, built, model=model, **options)


def rate(step: int) -> float:
    return 0.05 * (1 - step / 40)


def train(optimizer: Any, functional: Functional, step: Any, start: int, end: int) -> list[float]:
    losses = []
    for t in range(start, end):
        for group in optimizer.param_groups:
            group["lr"] = rate(t)
        for mine, new in zip(functional.batch, batch_of(t)):
            mine.copy_(new)
        losses.append(step().clone())
    return [loss.item() for loss in losses]


def captured_run(method: str, parallel: Any = "auto", **options: Any) -> tuple[Any, ...]:
    model = net()
    optimizer = optimizer_of(method, model, **options)
    functional = Functional(model, loss_fn)
    functional.batch = batch_of(0)
    captured = Captured(optimizer, functional, parallel)
    return model, optimizer, functional, captured


def eager_run(method: str, end: int, **options: Any) -> tuple[nn.Module, list[float]]:
    model = net()
    optimizer = optimizer_of(method, model, **options)
    losses = []
    for t in range(end):
        x, y = batch_of(t)
        for group in optimizer.param_groups:
            group["lr"] = rate(t)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return model, losses


@gpu
def test_another_bound_or_clipping_is_heard_by_captured_steps() -> None:
    model, optimizer, functional, captured = captured_run("crsam", False, warmup=0)
    train(optimizer, functional, captured.step, 0, 10)
    assert captured.is_ready
    optimizer.objective = replace(optimizer.objective, trust=1e-3)
    train(optimizer, functional, captured.step, 10, 20)
    length = optimizer.report["trust_scale"] * optimizer.report["regularizer"]
    assert length.item() <= 1.01e-3
    assert captured.is_ready
    optimizer.max_norm = 1e-4
    train(optimizer, functional, captured.step, 20, 30)
    assert captured.is_ready
    followed = [p.grad for p in model.parameters() if p.grad is not None]
    assert torch.stack([g.norm() for g in followed]).norm().item() <= 1.01e-4


@gpu
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parallel", [False, True, "auto"])
def test_captured_training_is_eager_training(method: str, parallel: Any) -> None:
    torch.backends.cudnn.deterministic = True
    options = METHODS[method]
    model, optimizer, functional, captured = captured_run(method, parallel, **options)
    losses = train(optimizer, functional, captured.step, 0, 30)
    expected_model, expected = eager_run(method, 30, **options)
    assert losses == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert losses[-1] < losses[0]
    for a, b in zip(model.state_dict().values(), expected_model.state_dict().values()):
        assert (a - b).double().norm() <= 0.05 * b.double().norm() + 1e-3
    if method != "sgd":
        assert optimizer.report["loss"].item() == pytest.approx(losses[-1])
        assert optimizer.param_groups[0]["crsam_step"] == 30


def narrow(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(batch[0])
    return F.cross_entropy(logits.float(), batch[1])


@gpu
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax")  # torch 2.11 tells of its own decisions
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kept", STRATEGIES)
def test_each_way_trains_as_eager_steps_do(kept: str, every: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def run(is_captured: bool) -> tuple[Any, ...]:
        model = net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = optimizer_of("crsam", model, rho=0.1, warmup=0, every=every)
        compile = (
            is_captured and every == 1 and STRATEGIES[kept].num_choices is not None
        )  # takes seconds
        functional = Functional(model, narrow, autocast=torch.bfloat16, compile=compile)
        functional.batch = batch_of(0)
        if not is_captured:
            return optimizer, functional, lambda: optimizer.step(functional)
        captured = Captured(optimizer, functional)

        def time(_: Any) -> float:
            timed.append(functional.way)
            return float(functional.way != STRATEGIES[kept])

        monkeypatch.setattr(captured, "_time", time)
        return optimizer, functional, captured.step

    timed: list[Any] = []
    expected = train(*run(False), 0, 30)
    optimizer, functional, step = run(True)
    losses = train(optimizer, functional, step, 0, 30)
    assert timed == list(STRATEGIES.values())
    assert functional.way == STRATEGIES[kept]
    # On a CPU, a change of 1e-4 in the first weights leads to 0.65 and 0.43 of these.
    assert losses == pytest.approx(expected, rel=0.05 * every, abs=0.03 * every)
    assert losses[-1] < 0.8 * losses[0]
    (grad, *_) = [p.grad for group in optimizer.param_groups for p in group["params"]]
    before = grad.clone()
    for _ in range(every):  # the last of which is of the same plan
        step()
    assert not torch.equal(grad, before)  # that of the graph which is kept


@gpu
def test_a_graph_draws_what_an_eager_step_draws() -> None:
    torch.backends.cudnn.deterministic = True
    options = {"rho": 0.5, "sigma": 0.5}
    _, optimizer, functional, captured = captured_run("rsam", **options)
    losses = torch.tensor(train(optimizer, functional, captured.step, 0, 15))
    same, other = (torch.tensor(eager_run("rsam", 15, seed=seed, **options)[1]) for seed in (0, 1))
    assert (losses - same).norm() < 0.1 * (losses - other).norm()


@gpu
def test_the_learning_rate_is_read_at_every_step() -> None:
    model, optimizer, functional, captured = captured_run("crsam")
    train(optimizer, functional, captured.step, 0, 10)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.clone() for p in model.parameters()]
    captured.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    captured.step()
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before))


@gpu
@pytest.mark.parametrize("method", ["sgd", "crsam", "looksam", "rsam"])
@pytest.mark.parametrize("base", [SGD, AdamW])
def test_a_captured_run_resumes(method: str, base: Any) -> None:
    def make(p: Any) -> Any:
        return base(p, lr=0.05)

    torch.backends.cudnn.deterministic = True
    model, optimizer, functional, captured = captured_run(method, False, base=make)
    train(optimizer, functional, captured.step, 0, 12)
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    rest = train(optimizer, functional, captured.step, 12, 20)
    model, optimizer, functional, captured = captured_run(method, False, base=make)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    assert train(optimizer, functional, captured.step, 12, 20) == pytest.approx(rest, rel=1e-5)


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device() -> None:
    _, optimizer, functional, captured = captured_run("crsam")
    train(optimizer, functional, captured.step, 0, 6)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            captured.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_cannot_be_captured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net("cpu")
    assert "CUDA" in str(capture_blocker(SGD(model.parameters(), lr=0.1)))
    assert "ByGradientNorm" in str(capture_blocker(optimizer_of("aesam", model)))
    for name in ("esam", "ssam"):
        assert "on the host" in str(capture_blocker(optimizer_of(name, model)))
    with pytest.raises(CannotCapture, match="the parameters are not on a CUDA"):
        Captured(SGD(model.parameters(), lr=0.1), Functional(model, loss_fn))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert capture_blocker(optimizer_of("sam", model)) == "there are several processes"


def curve(method: str, captured: bool, order: int) -> list[float]:
    """Losses of 100 bf16 steps; `order` of the samples in a batch changes rounding, no more."""
    torch.manual_seed(0)
    model = ResNet(18, 5, width=16).cuda().to(memory_format=torch.channels_last)
    optimizer = optimizer_of(method, model, **METHODS[method])
    step: Any = EagerStep(model, optimizer, autocast=torch.bfloat16)
    if captured:
        step = CapturedStep(model, optimizer, autocast=torch.bfloat16, channels_last=True)
    losses = []
    for t in range(100):
        x, y = (part.roll(order, 0) for part in batch_of(t % 10))
        losses.append(step(Batch(x, y))[0].clone())
    return torch.stack(losses).tolist()


@gpu
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax")  # torch 2.11 tells of its own decisions
@pytest.mark.parametrize("method", ["sgd", "sam", "crsam"])
def test_a_hundred_captured_steps_in_bfloat16_are_within_the_noise_of_eager_ones(
    method: str,
) -> None:
    eager, again, captured = (
        torch.tensor(curve(method, *how)) for how in ((False, 0), (False, 1), (True, 0))
    )
    noise = (eager - again).abs().mean()
    assert (eager - captured).abs().mean() <= 3 * noise + 0.01
    assert captured[-10:].mean() < 0.7 * captured[:10].mean()


@gpu
def test_a_model_that_draws_random_numbers_is_found_out_by_its_first_step() -> None:
    model = nn.Sequential(net(), nn.Identity())
    model[1].forward = lambda x: x * (torch.rand_like(x) > 0.5)
    optimizer = optimizer_of("sam", model)
    functional = Functional(model, loss_fn)
    functional.batch = batch_of(0)
    captured = Captured(optimizer, functional)
    captured.step()
    weights = [p.clone() for p in model.parameters()]
    with pytest.raises(CannotCapture, match="draws random numbers"):
        captured.step()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights))


def reads_the_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    loss = F.cross_entropy(logits, batch[1])
    return loss * float(loss.item() > 0), logits


@gpu
@pytest.mark.parametrize("method", ["sgd", "crsam"])
def test_what_fails_while_it_is_captured_goes_on_eagerly(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.backends.cudnn.deterministic = True
    monkeypatch.setattr(train_captured, "loss_function", lambda autocast: reads_the_loss)
    weights = []
    for captured in (True, False):
        model = net()
        optimizer = optimizer_of(method, model, **METHODS[method])
        eager = EagerStep(model, optimizer)
        step: Any = eager
        if captured:
            step = CapturedStep(model, optimizer, compile=False, otherwise=eager)
        for t in range(8):
            step(Batch(*batch_of(t)))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert capsys.readouterr().err.count("steps are not captured in a CUDA graph") == 1
    for a, b in zip(*weights):
        assert (a - b).norm() <= 0.02 * b.norm() + 1e-4
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(2, device="cuda")  # random numbers can be drawn as before


class Failing:
    """Stands for `Captured` where there is no GPU: takes two steps, then cannot go on."""

    is_ready = False

    def __init__(self, optimizer: Any, functional: Functional, *_: Any, **__: Any) -> None:
        self.optimizer, self.functional, self.taken = optimizer, functional, 0

    def step(self) -> Tensor:
        if self.taken == 2:
            raise CannotCapture("some reason")
        self.taken += 1
        return self.optimizer.step(self.functional)


def test_steps_go_on_eagerly_from_where_a_capture_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_captured, "Captured", Failing)
    g = torch.Generator().manual_seed(0)
    batches = [
        Batch(torch.randn(8, 3, 8, 8, generator=g), torch.randint(5, (8,), generator=g))
        for _ in range(5)
    ]
    weights = []
    for captured in (True, False):
        model = net("cpu")
        optimizer = optimizer_of("crsam", model, **METHODS["crsam"])
        eager = EagerStep(model, optimizer)
        step: Any = eager
        if captured:
            step = CapturedStep(model, optimizer, compile=False, otherwise=eager)
        found = [step(batch) for batch in batches]
        weights.append([p.detach().clone() for p in model.parameters()])
        assert all(0 <= right.item() <= 8 for _, right in found)
    said = capsys.readouterr().err
    assert said == "steps are not captured in a CUDA graph: some reason\n"
    for a, b in zip(*weights):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_without_an_alternative_the_reason_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_captured, "Captured", Failing)
    model = net("cpu")
    step = CapturedStep(model, optimizer_of("sam", model), compile=False)
    batch = Batch(torch.randn(8, 3, 8, 8), torch.randint(5, (8,)))
    step(batch), step(batch)
    with pytest.raises(CannotCapture, match="some reason"):
        step(batch)
