"""The normalised trace, and when it means nothing."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from curvature.bowls import ONES, Bowl, bowl, loss_of
from curvature.cases import (
    every_case,
    exact,
)


@every_case
def test_normalized_trace_is_the_trace_by_the_norm(name: str) -> None:
    case, H = exact(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*do not tell the trace")
        found = curvature.normalized_trace(*case.given, num_probes=40)
    assert found.trace == curvature.hessian_trace(*case.given, num_probes=40)
    norm = case.gradient().norm().item()
    assert found.grad_norm == pytest.approx(norm, rel=1e-10)
    assert found.value == pytest.approx(found.trace.value / norm, rel=1e-10)
    assert found.stderr == pytest.approx(found.trace.stderr / norm, rel=1e-10)
    assert abs(found.value - H.trace().item() / norm) < 3.5 * found.stderr


def regression(
    dtype: torch.dtype, at_minimum: bool
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64, generator=g)
    y = torch.randn(40, 1, dtype=torch.float64, generator=g)
    model = nn.Linear(3, 1, bias=False).to(dtype)
    solution = torch.linalg.lstsq(x, y).solution.T
    with torch.no_grad():
        model.weight.copy_(solution if at_minimum else solution + 0.01)
    return model, [(x.to(dtype)[:25], y.to(dtype)[:25]), (x.to(dtype)[25:], y.to(dtype)[25:])]


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalized_trace_warns_where_the_gradient_is_rounding(dtype: torch.dtype) -> None:
    model, batches = regression(dtype, at_minimum=True)
    with pytest.warns(UserWarning, match="is that of rounding errors"):
        found = curvature.normalized_trace(model, squares, batches, num_probes=10)
    assert found.trace.value > 1
    assert found.grad_norm < 1e-5
    model, batches = regression(dtype, at_minimum=False)
    curvature.normalized_trace(model, squares, batches, num_probes=10)  # warnings are errors


def test_normalized_trace_of_no_gradient_is_not_a_number() -> None:
    model = Bowl(torch.eye(2).double(), torch.zeros(2).double(), torch.zeros(2).double())
    with pytest.warns(UserWarning, match="is that of rounding errors"):
        found = curvature.normalized_trace(model, loss_of, ONES, num_probes=5)
    assert math.isnan(found.value)
    assert found.trace == (2.0, 0.0)
    assert found.grad_norm == 0


def test_normalized_trace_warns_where_the_trace_is_not_told_from_0() -> None:
    model = bowl([3.0, 1.0, -1.0, -3.0])
    with pytest.warns(UserWarning, match="20 probes do not tell the trace"):
        curvature.normalized_trace(model, loss_of, ONES, num_probes=20)
