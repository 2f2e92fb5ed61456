"""The training loop: one line that takes a step, and what has to happen around it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from crsam.lab.data.batches import Batch, Batches, derive
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stop, Stopped
from crsam.lab.train.schedule import Schedule
from crsam.lab.train.tally import Tally
from crsam.progress import bar, on_terminal, say

Metrics = dict[str, Any]


class Diverged(Exception):
    """The loss is no longer a number."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the loss was not finite any more at step {step}")
        self.step = step


@dataclass
class Training:
    """All that changes while training goes on: what a checkpoint holds."""

    model: nn.Module
    """Not wrapped for several processes."""
    optimizer: Optimizer
    average: AveragedModel | None = None
    """The moving average of the weights, where one is kept."""
    step: int = 0
    """Steps taken."""
    tally: Tally = field(default_factory=Tally)
    """Of the steps since the last line of metrics."""

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def set_rates(self, factor: float) -> float:
        """Gives each group its own rate, times `factor`; the first one's is returned."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return self._rates[0] * factor

    def took_step(self, loss: Tensor, accuracy: Tensor) -> None:
        """Counts a step and what it reported."""
        self.step += 1
        report = getattr(self.optimizer, "report", {})
        self.tally.add({**report, "loss": loss, "accuracy": accuracy})
        if self.average is not None:
            self.average.update_parameters(self.model)

    @property
    def judged(self) -> nn.Module:
        """The model to evaluate: the averaged one where there is one."""
        return self.model if self.average is None else self.average.module

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "tally": self.tally.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        # A copy: the optimizer keeps these tensors, and they may lie in a mapped file.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.tally.load_state_dict(state["tally"])
        self.step = state["step"]


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of weights and buffers; starts at the first step's."""
    moving = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=moving, use_buffers=True)


def waits(share: float) -> str:
    """Of the line that tells how training goes on: whether it waits for data, if it does.

    Example:
        >>> waits(0.25), waits(0.004)
        ('  25 % waiting for data', '')
    """
    return f"  {share:.0%} waiting for data".replace("%", " %") if share >= 0.01 else ""


@dataclass(frozen=True)
class Plan:
    """How long to train, at which rate, and when to speak."""

    epochs: int
    schedule: Schedule
    seed: int = 0
    log_every: int = 50
    """Steps of an epoch between two lines of metrics; the last one is at its end, and covers half
    as many steps at least, unless the epoch has less."""
    label: str = "training"
    """Of the progress bar."""
    lines: bool = True
    """Say a line an epoch where there is no terminal for a bar."""


def fit(
    training: Training,
    batches: Batches,
    take_step: Callable[[Batch], tuple[Tensor, Tensor]],
    plan: Plan,
    *,
    on_metrics: Callable[[Metrics], None] = lambda metrics: None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    stop: Stop | None = None,
    world: World | None = None,
) -> None:
    """Trains from ``training.step`` on to the end of the plan.

    Args:
        training: Moved on in place.
        batches: Of one process.
        take_step: Takes a step on a batch; returns the loss before it and how many were right.
        plan: See there.
        on_metrics: Given means over the steps since the last time.
        on_epoch: Called after each epoch, with how many are done.
        stop: Looked at between steps.
        world: The processes that train together.

    Raises:
        Stopped: If that was asked for; `training` is between two steps.
        Diverged: If the loss is found not to be finite.
    """
    stop, world = stop or Stop(), world or World()
    per_epoch, total = len(batches), plan.epochs * len(batches)
    began, first = time.perf_counter(), training.step
    note = ""
    training.model.train()
    shown = None if world.is_main else False
    with bar(plan.label, total, done=training.step, shown=shown) as advance:
        while training.step < total:
            epoch, start = divmod(training.step, per_epoch)
            for batch in batches.epoch(epoch, start):
                # Masks, like all that is random, are a function of seed and step.
                torch.manual_seed(derive(plan.seed, "masks", training.step, world.rank))
                now = training.step / per_epoch
                lr = training.set_rates(plan.schedule.factor(now, plan.epochs))
                loss, num_right = take_step(batch)
                training.took_step(loss, 100 * num_right.double() / len(batch.inputs))
                taken = training.step % per_epoch
                ended = taken == 0
                due = ended or (
                    taken % plan.log_every == 0 and per_epoch - taken >= plan.log_every / 2
                )
                if due:
                    means = training.tally.means(world)
                    on_metrics({"step": training.step, "lr": lr, **means})
                    if not math.isfinite(means["loss"]):
                        raise Diverged(training.step)
                    seconds = time.perf_counter() - began
                    speed = (training.step - first) * batches.batch_size / seconds
                    note = (
                        f"epoch {epoch + 1}/{plan.epochs}  loss {means['loss']:.4f}  "
                        f"accuracy {means['accuracy']:.1f} %  {speed:,.0f} images/s"
                        f"{waits(batches.waits.share)}"
                    )
                advance(note=note)
                # Asking all processes makes a GPU wait: there, now and then.
                looks = due or world.size == 1 or world.device.type == "cpu"
                if not ended and (looks or training.step % 10 == 0) and world.any(stop.asked):
                    raise Stopped
            on_epoch(epoch + 1)
            if plan.lines and world.is_main and not on_terminal():
                left = (total - training.step) / (training.step - first)
                say(f"{plan.label}: {note}  {left * (time.perf_counter() - began):.0f} s left")
            if training.step < total and world.any(stop.asked):
                raise Stopped
