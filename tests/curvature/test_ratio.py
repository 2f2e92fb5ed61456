"""The approximation ratio: 1 on linear losses, and what it is made of."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from crsam.curvature.ascent import Ball, backtracking_ascent
from crsam.curvature.mean_loss import MeanLoss
from crsam.errors import UserError
from curvature.cases import (
    Case,
    each_cross_entropy,
    exact,
    flat,
    mean_cross_entropy,
    mlp,
    trained,
    vectors,
)


def slope(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)[:, 0]


def test_is_1_on_a_linear_loss() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 1).double()
    batches = [torch.randn(n, 5, dtype=torch.float64) + 1.5 for n in (7, 2)]
    for per_batch in (False, True):
        found = curvature.approximation_ratio(model, slope, batches, rho=0.7, per_batch=per_batch)
        assert found.mean == pytest.approx(1, abs=1e-9)
        assert found.of_means == pytest.approx(1, abs=1e-9)
        assert found.stderr == pytest.approx(0, abs=1e-9)
        assert found.num_samples == 9


def test_is_1_with_one_step() -> None:
    case = Case(mlp(), vectors((6, 3)), each_cross_entropy)
    found = curvature.approximation_ratio(*case.given, rho=0.5, steps=1)
    assert found.mean == found.of_means == 1


def rises(case: Case, offset: Tensor) -> Tensor:
    """Of each sample's loss, in a copy of the model with its weights moved."""
    model = copy.deepcopy(case.model)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(weights + offset, model.parameters())
    losses = [
        torch.cat([each_cross_entropy(m, b) for b in case.batches]) for m in (model, case.model)
    ]
    return (losses[0] - losses[1]).detach()


def ascended(case: Case, rho: float, steps: int) -> Tensor:
    """Plain projected ascent as the paper's words have it: normalised steps, the last point."""
    moved = Case(copy.deepcopy(case.model), case.batches, case.loss_fn)
    start = nn.utils.parameters_to_vector(moved.params).detach()
    offset = torch.zeros_like(start)
    for _ in range(steps):
        nn.utils.vector_to_parameters(start + offset, moved.params)
        gradient = moved.gradient()
        offset = offset + rho * gradient / gradient.norm()
        if offset.norm() > rho:
            offset = offset * (rho / offset.norm())
    return offset


def backtracked(case: Case, rho: float, steps: int) -> Tensor:
    with MeanLoss(*case.given) as loss:
        return flat(backtracking_ascent(loss, Ball(rho), steps).offset)


@pytest.mark.parametrize("floor", [1e-6, 0.1, 1.0])
@pytest.mark.parametrize(
    ("options", "best", "steps"),
    [
        ({}, ascended, 20),
        ({"steps": 3}, ascended, 3),
        ({"ascent": "backtracking"}, backtracked, 20),
    ],
)
def test_is_made_of_the_rises_of_each_sample(
    options: dict[str, Any], best: Callable[..., Tensor], steps: int, floor: float
) -> None:
    case = trained(Case(mlp(), vectors((9, 5)), each_cross_entropy), 10)
    one = rises(case, 0.6 * case.gradient() / case.gradient().norm())
    many = rises(case, best(case, 0.6, steps))
    counts = many > floor * many.mean()
    assert 0 < counts.sum() < 14
    ratios = (one / many)[counts]
    found = curvature.approximation_ratio(*case.given, rho=0.6, floor=floor, **options)
    assert found.rho == 0.6
    assert found.mean == pytest.approx(ratios.mean().item(), rel=1e-6)
    assert found.stderr == pytest.approx(ratios.std().item() / math.sqrt(len(ratios)), rel=1e-5)
    assert found.of_means == pytest.approx((one.mean() / many.mean()).item(), rel=1e-8)
    assert found.left_out == (~counts).sum()
    assert found.num_samples == 14


@pytest.mark.parametrize("name", ["mlp, relu", "mlp, trained", "batch norm in training"])
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_of_means_is_at_most_1(name: str, rho: float) -> None:
    """With backtracking, since its point is never below that of the first step."""
    case, _ = exact(name)
    found = curvature.approximation_ratio(
        case.model, each_cross_entropy, case.batches, rho=rho, ascent="backtracking"
    )
    assert found.of_means <= 1 + 1e-12


def test_the_two_ascents_give_different_ratios_and_another_name_is_refused() -> None:
    case = trained(Case(mlp(), vectors((9, 5)), each_cross_entropy), 10)
    plain, best = (
        curvature.approximation_ratio(*case.given, rho=2.0, ascent=ascent).of_means
        for ascent in ("plain", "backtracking")
    )
    assert best < plain  # which finds a lower point
    with pytest.raises(UserError, match="ascent must be 'plain' or 'backtracking', got 'newton'"):
        curvature.approximation_ratio(*case.given, ascent="newton")  # type: ignore[arg-type]


def test_per_batch_with_single_samples_gives_each_its_own_ascent() -> None:
    case = Case(mlp(), vectors((1, 1, 1)), each_cross_entropy)
    found = curvature.approximation_ratio(*case.given, rho=0.5, per_batch=True)
    singles = [
        curvature.approximation_ratio(case.model, case.loss_fn, [batch], rho=0.5)
        for batch in case.batches
    ]
    assert found.mean == pytest.approx(sum(s.of_means for s in singles) / 3, rel=1e-9)
    assert found.mean < 1
    assert found.left_out == 0


def test_all_left_out_is_not_a_number() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    batches = [torch.zeros(3, 2, dtype=torch.float64)]
    found = curvature.approximation_ratio(model, slope, batches)
    assert math.isnan(found.mean)
    assert math.isnan(found.stderr)
    assert math.isnan(found.of_means)
    assert found.left_out == found.num_samples == 3


@pytest.mark.parametrize("measure", [curvature.approximation_ratio, curvature.fisher_rao])
def test_a_mean_where_each_loss_is_needed_is_refused(measure: object) -> None:
    case = Case(mlp(), vectors((6, 3)))
    with pytest.raises(UserError, match=r"the loss of each sample here.*got one number for 6"):
        measure(case.model, mean_cross_entropy, case.batches)  # type: ignore[operator]
    one = vectors((1,))
    measure(case.model, mean_cross_entropy, one)  # type: ignore[operator]  # a mean of one is fine
