"""The learning rate's factor, against torch's own schedulers and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from crsam.errors import UserError
from crsam.lab.train.schedule import Schedule


def rates(kind: Any, epochs: int, **options: Any) -> list[float]:
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = kind(opt, **options)
    seen = []
    for _ in range(epochs):
        seen.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return seen


def test_cosine_is_torchs() -> None:
    expected = rates(CosineAnnealingLR, 10, T_max=10, eta_min=0.1)
    assert [Schedule(final=0.1).factor(e, 10) for e in range(10)] == pytest.approx(expected)


def test_step_is_torchs() -> None:
    expected = rates(MultiStepLR, 10, milestones=[3, 7], gamma=0.2)
    schedule = Schedule("step", milestones=(3, 7), gamma=0.2)
    assert [schedule.factor(e, 10) for e in range(10)] == pytest.approx(expected)


def test_milestones_below_one_are_shares_of_all_epochs() -> None:
    shares, epochs = Schedule("step", milestones=(0.5, 0.75)), Schedule("step", milestones=(20, 30))
    assert [shares.factor(e, 40) for e in range(40)] == [epochs.factor(e, 40) for e in range(40)]


@pytest.mark.parametrize("name", ["cosine", "step", "constant"])
def test_the_rate_rises_evenly_and_then_starts_at_its_value(name: Any) -> None:
    schedule = Schedule(name, warmup=4, milestones=(8,))
    assert [schedule.factor(e, 10) for e in (0, 1, 2, 3, 4)] == [0, 0.25, 0.5, 0.75, 1]


def test_the_cosine_runs_over_what_the_warmup_leaves() -> None:
    assert Schedule(warmup=4).factor(7, 10) == pytest.approx(0.5)
    assert Schedule(warmup=4).factor(10, 10) == pytest.approx(0)


def test_a_warmup_longer_than_training_only_rises() -> None:
    assert Schedule(warmup=5).factor(1.5, 2) == 0.3


@given(
    name=st.sampled_from(["cosine", "step", "constant"]),
    warmup=st.floats(0, 20),
    final=st.floats(0, 1),
    epoch=st.floats(0, 30),
    epochs=st.integers(1, 20),
)
def test_the_factor_is_never_negative_or_above_one(
    name: Any, warmup: float, final: float, epoch: float, epochs: int
) -> None:
    schedule = Schedule(name, warmup=warmup, milestones=(0.5,), final=final)
    assert -1e-12 <= schedule.factor(epoch, epochs) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"warmup": -1}, "schedule.warmup must be a number of at least 0, got -1"),
        ({"warmup": "5"}, "schedule.warmup must be a number of at least 0, got '5'"),
        ({"gamma": float("nan")}, "schedule.gamma must be a number of at least 0, got nan"),
        ({"final": float("inf")}, "schedule.final must be a number of at least 0, got inf"),
        ({"final": True}, "schedule.final must be a number of at least 0, got True"),
        ({"milestones": (5, -1)}, "schedule.milestones must be a number of at least 0, got -1"),
        ({"name": "step"}, "schedule.milestones must name the epochs at which the rate drops"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schedule(**options)


def test_a_list_of_milestones_becomes_a_tuple() -> None:
    assert hash(Schedule("step", milestones=[1, 2])) == hash(Schedule("step", milestones=(1, 2)))  # type: ignore[arg-type]
