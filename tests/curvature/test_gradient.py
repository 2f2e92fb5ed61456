"""The gradient's norm, products with the Hessian, and the curvature along the gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from crsam import curvature
from crsam.errors import UserError
from curvature.bowls import ONES, Bowl, bowl, loss_of
from curvature.cases import (
    each_cross_entropy,
    every_case,
    exact,
    flat,
    mlp,
    vectors,
)


@every_case
def test_product_is_that_of_the_exact_hessian(name: str) -> None:
    case, H = exact(name)
    torch.manual_seed(0)
    v = [torch.randn_like(p) for p in case.params]
    product = curvature.hessian_vector_product(*case.given, v)
    torch.testing.assert_close(flat(product), H @ flat(v), rtol=1e-9, atol=1e-11)
    assert [p.shape for p in product] == [p.shape for p in case.params]


@every_case
def test_gradient_norm_is_that_of_the_full_mean_gradient(name: str) -> None:
    case, _ = exact(name)
    norm = curvature.gradient_norm(*case.given)
    assert norm == pytest.approx(case.gradient().norm().item(), rel=1e-10)


@pytest.mark.parametrize(
    "name", ["mlp", "batch norm in evaluation", "a loss for each sample", "unused parameters"]
)
def test_gradient_norm_of_batches_is_the_plain_mean_of_their_norms(name: str) -> None:
    """As in the authors' code: a loop over batches, and every batch counts once."""
    case, H = exact(name)
    total, count = 0.0, 0
    for batch in case.batches:
        for p in case.params:
            p.grad = None
        case.loss_fn(case.model, batch).mean().backward()
        square = sum(p.grad.square().sum().item() for p in case.params if p.grad is not None)
        total, count = total + square**0.5, count + 1
    assert len({len(y) for _, y in case.batches}) > 1
    for p in case.params:
        p.grad = None
    found = curvature.gradient_norm(*case.given, of="batches")
    assert found == pytest.approx(total / count, rel=1e-12)
    assert found > 1.01 * curvature.gradient_norm(*case.given)  # of="data"
    normalized = curvature.normalized_trace(*case.given, of="batches", num_probes=40)
    assert normalized.batch_grad_norm == pytest.approx(total / count, rel=1e-12)
    assert normalized.value == pytest.approx(normalized.trace.value / (total / count), rel=1e-12)
    assert abs(normalized.value - H.trace().item() / (total / count)) < 3.5 * normalized.stderr


def test_norms_of_anything_else_are_refused() -> None:
    case, _ = exact("mlp")
    for function in (curvature.gradient_norm, curvature.normalized_trace):
        with pytest.raises(UserError, match="of must be 'data' or 'batches', got 'samples'"):
            function(*case.given, of="samples")  # type: ignore[operator]


def test_a_vector_of_other_shapes_is_refused() -> None:
    with pytest.raises(UserError, match=r"of shapes \[\(5, 4\)"):
        curvature.hessian_vector_product(mlp(), each_cross_entropy, vectors((5,)), [torch.ones(3)])


def test_finite_difference_of_a_quadratic_is_the_curvature_along_the_gradient() -> None:
    model = bowl([5.0, 1.0, -2.0])
    g = (model.A @ model.w + model.b).detach()
    expected = (g @ model.A @ g / (g @ g)).item()
    for rho in (0.01, 1.0):
        found = curvature.finite_difference_curvature(model, loss_of, ONES, rho=rho)
        assert found == pytest.approx(expected, rel=1e-6)


def test_finite_difference_of_a_smooth_net_tends_to_the_second_derivative() -> None:
    case, H = exact("mlp")
    g = case.gradient()
    expected = (g @ H @ g / (g @ g)).item()
    found = curvature.finite_difference_curvature(*case.given, rho=1e-3)
    assert found == pytest.approx(expected, rel=1e-4)


def test_finite_difference_sees_kinks_that_no_second_derivative_sees() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.05)
    given = (model, lambda m, x: m(x).relu().mean(), [torch.ones(2, 1).double()])
    assert curvature.hessian_trace(*given, num_probes=2) == (0, 0)
    assert curvature.finite_difference_curvature(*given, rho=0.1) == pytest.approx(5.0, rel=1e-6)


def test_finite_difference_without_a_gradient_is_not_a_number() -> None:
    model = Bowl(torch.eye(2).double(), torch.zeros(2).double(), torch.zeros(2).double())
    with pytest.warns(UserWarning, match="the gradient is 0"):
        assert math.isnan(curvature.finite_difference_curvature(model, loss_of, ONES))
