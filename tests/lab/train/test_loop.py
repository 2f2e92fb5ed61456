"""The loop around the step: rates, averages, logs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from crsam.lab.data.batches import Batch, Batches, Feed
from crsam.lab.data.images import Held
from crsam.lab.train.loop import Diverged, Plan, Training, averaged, fit
from crsam.lab.train.schedule import Schedule
from crsam.lab.train.step import EagerStep


def images() -> Held:
    g = torch.Generator().manual_seed(0)
    return Held(
        torch.randint(256, (40, 1, 2, 2), dtype=torch.uint8, generator=g), torch.arange(40) % 3
    )


def pieces(ema: float | None = None) -> tuple[Training, Batches, EagerStep]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    groups = [{"params": model[1].parameters(), "lr": 0.5}, {"params": model[3].parameters()}]
    optimizer = SGD(groups, lr=0.1)
    training = Training(model, optimizer, None if ema is None else averaged(model, ema))
    batches = Batches(images(), Feed((0.5,), (0.5,), 3), 10)
    return training, batches, EagerStep(model, optimizer)


def test_every_group_has_its_own_rate_times_the_factor_at_every_step() -> None:
    training, batches, step = pieces()
    seen: list[list[float]] = []

    def watching(batch: Batch) -> tuple[Tensor, Tensor]:
        seen.append([group["lr"] for group in training.optimizer.param_groups])
        return step(batch)

    schedule = Schedule("cosine", warmup=1.0)
    lines: list[dict[str, Any]] = []
    fit(training, batches, watching, Plan(3, schedule, log_every=1), on_metrics=lines.append)
    factors = [schedule.factor(t / 4, 3) for t in range(12)]
    assert [rates[0] for rates in seen] == pytest.approx([0.5 * f for f in factors])
    assert [rates[1] for rates in seen] == pytest.approx([0.1 * f for f in factors])
    assert [line["lr"] for line in lines] == pytest.approx([0.5 * f for f in factors])


def test_rates_do_not_compound_after_a_checkpoint() -> None:
    training, *_ = pieces()
    training.set_rates(0.25)
    state = copy.deepcopy(training.state_dict())
    other, *_ = pieces()
    other.load_state_dict(state)
    assert other.set_rates(1.0) == 0.5


def test_the_average_is_the_exponential_one_of_weights_and_buffers() -> None:
    training, batches, step = pieces(ema=0.75)
    model, expected = training.model, None
    for batch in batches.epoch(0):
        training.took_step(*step(batch))
        now = {name: value.clone().double() for name, value in model.state_dict().items()}
        if expected is None:
            expected = now
        expected = {name: 0.75 * expected[name] + 0.25 * now[name] for name in now}
    assert expected is not None
    for name, value in training.judged.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("every", "ends"), [(2, [2, 4, 6, 8]), (3, [4, 8]), (50, [4, 8])])
def test_metrics_are_means_since_the_last_line_and_every_epoch_ends_with_one(
    every: int, ends: list[int]
) -> None:
    training, batches, step = pieces()
    losses: list[float] = []
    lines: list[dict[str, Any]] = []
    epochs: list[int] = []

    def watching(batch: Batch) -> tuple[Tensor, Tensor]:
        loss, right = step(batch)
        losses.append(loss.item())
        return loss, right

    plan = Plan(2, Schedule(), log_every=every)
    fit(training, batches, watching, plan, on_metrics=lines.append, on_epoch=epochs.append)
    assert [line["step"] for line in lines] == ends
    parts = [losses[begin:end] for begin, end in zip([0, *ends], ends)]
    assert [line["loss"] for line in lines] == pytest.approx([sum(p) / len(p) for p in parts])
    assert epochs == [1, 2]


def test_a_loss_that_is_no_number_ends_it() -> None:
    training, batches, _ = pieces()

    def broken(batch: Batch) -> tuple[Tensor, Tensor]:
        return torch.tensor(float("nan")), torch.tensor(0)

    with pytest.raises(Diverged, match="step 2"):
        fit(training, batches, broken, Plan(1, Schedule(), log_every=2))
