"""Accelerate: a step in ``accelerator.accumulate`` is as in the plain loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

import crsam
from integrations import tasks

accelerate = pytest.importorskip("accelerate")
from crsam.integrations.accelerate import SharpnessAwareStep  # noqa: E402


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Run:
    """What users write; only the seeding of every batch is the test's."""

    def __init__(self, method: str, accumulate: int = 1, **options: Any) -> None:
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, step_scheduler_with_optimizer=True
        )
        self.net = tasks.net()
        opt = tasks.make(method, self.net, model=self.net, **options)
        self.model, self.opt, self.loader, self.schedule = self.accelerator.prepare(
            self.net, opt, tasks.loader(), CosineAnnealingLR(opt, 100, eta_min=0.1)
        )
        self.step = SharpnessAwareStep(self.accelerator, self.model, self.opt, loss_fn)

    def epoch(self, number: int) -> list[float]:
        losses = []
        for index, batch in enumerate(self.loader):
            with self.accelerator.accumulate(self.model):
                tasks.seed_batch(number, index)
                losses.append(self.step(batch).item())
                self.schedule.step()
        return losses


@pytest.mark.parametrize("method", tasks.PLAIN_METHODS)
def test_any_method_goes_as_in_the_plain_loop(method: str) -> None:
    run = Run(method)
    losses = run.epoch(0)
    plain, expected = tasks.train_plainly(method)
    tasks.assert_same(run.net, plain)
    assert losses == [loss.item() for loss in expected]


@pytest.mark.parametrize("method", ["crsam", "looksam", "rsam"])
def test_accumulation_and_clipping_act_as_in_the_plain_loop(method: str) -> None:
    run = Run(method, accumulate=4, max_norm=0.05)
    losses = run.epoch(0)
    plain, expected = tasks.train_plainly(method, accumulate=4, max_norm=0.05)
    tasks.assert_same(run.net, plain)
    # R-SAM's first pass is elsewhere. What a micro-batch returns before the step is the loss at w.
    rel = 1e-2 if method == "rsam" else 1e-6
    assert sum(losses[:4]) / 4 == pytest.approx(expected[0].item(), rel=rel)
    assert len(losses) == 6


def test_the_prepared_optimizer_switches_a_schedule_free_base() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    net = tasks.net()
    accelerator = accelerate.Accelerator(cpu=True)
    base = schedulefree.SGDScheduleFree(net.parameters(), lr=0.1)
    model, opt, loader = accelerator.prepare(net, crsam.SAM(base, model=net), tasks.loader())
    step = SharpnessAwareStep(accelerator, model, opt, loss_fn)
    opt.train()
    for batch in loader:
        with accelerator.accumulate(model):
            step(batch)
    weights = [p.clone() for p in net.parameters()]
    opt.eval()
    assert not base.param_groups[0]["train_mode"]
    for p, y in zip(net.parameters(), weights, strict=True):  # its authors' formula, β = 0.9
        x = y.lerp(base.state[p]["z"], 1 - 1 / 0.9)
        torch.testing.assert_close(p.detach(), x.detach())
        if p.ndim == 2:  # a bias before batch norm hardly moves
            assert not torch.equal(p, y)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    run = Run("crsam", accumulate=2)
    run.epoch(0)
    run.accelerator.save_state(str(tmp_path))
    run.epoch(1)
    _forget_state()
    resumed = Run("crsam", accumulate=2)
    resumed.accelerator.load_state(str(tmp_path))
    resumed.epoch(1)
    tasks.assert_same(run.net, resumed.net)


def _forget_state() -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_a_plain_closure_serves_a_loop_without_accumulation() -> None:
    run = Run("crsam")
    for index, batch in enumerate(run.loader):

        def closure(batch: Any = batch, index: int = index) -> Tensor:
            run.opt.zero_grad()
            tasks.seed_batch(0, index)
            loss = loss_fn(run.model, batch)
            run.accelerator.backward(loss)
            return loss

        run.opt.step(closure)
    tasks.assert_same(run.net, tasks.train_plainly()[0])


def test_a_closure_of_one_micro_batch_is_refused() -> None:
    run = Run("crsam", accumulate=2)
    with run.accelerator.accumulate(run.model), pytest.raises(ValueError, match="one micro-batch"):
        run.opt.step(lambda: loss_fn(run.model, next(iter(run.loader))))


def test_mistakes_are_one_clear_line() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), tasks.net()
    opt = tasks.make("sam", model)
    with pytest.raises(ValueError, match=r"must come out of accelerator\.prepare"):
        SharpnessAwareStep(accelerator, model, opt, loss_fn)
    sgd = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"expected an optimizer of crsam, .* got SGD"):
        SharpnessAwareStep(accelerator, model, sgd, loss_fn)
    esam = accelerator.prepare(tasks.make("esam", model))
    with pytest.raises(ValueError, match=r"ESAM .* looks at single samples"):
        SharpnessAwareStep(accelerator, model, esam, loss_fn)
    accelerator.state.distributed_type = accelerate.DistributedType.DEEPSPEED
    with pytest.raises(ValueError, match="under Accelerate's DEEPSPEED"):
        SharpnessAwareStep(accelerator, model, esam, loss_fn)


@pytest.mark.skipif(
    "scaler" not in inspect.signature(crsam.SAM.step).parameters, reason="step takes no scaler yet"
)
def test_an_overflow_in_any_pass_skips_the_step_and_the_scheduler() -> None:
    for bad_pass in (1, 2, 3):
        run = Run("crsam")
        run.opt.scaler = run.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        passes = 0

        def overflowing(model: nn.Module, batch: Any, bad_pass: int = bad_pass) -> Tensor:
            nonlocal passes
            passes += 1
            return loss_fn(model, batch) * (torch.inf if passes == bad_pass else 1.0)

        run.step.loss_fn = overflowing
        run.epoch(0)
        assert run.opt.scaler.get_scale() == 128.0
        assert run.opt.optimizer.param_groups[0]["crsam_step"] == 5
        assert run.schedule.scheduler.last_epoch == 5
        _forget_state()
