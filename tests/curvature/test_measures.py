"""Normalised trace, finite differences, Fisher–Rao, PAC-Bayes and the bound, against textbooks."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from curvature.bowls import ONES, Bowl, bowl, loss_of
from curvature.cases import (
    Case,
    each_cross_entropy,
    every_case,
    exact,
    mean_cross_entropy,
    mlp,
    vectors,
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


@pytest.mark.parametrize(
    "name", ["mlp", "mlp, relu", "attention in evaluation", "frozen parameters", "tied parameters"]
)
def test_fisher_rao_is_the_mean_square_of_each_samples_slope(name: str) -> None:
    case, _ = exact(name)
    total, count = 0.0, 0
    for x, y in case.batches:
        for i in range(len(x)):
            loss = mean_cross_entropy(case.model, (x[i : i + 1], y[i : i + 1]))
            grads = torch.autograd.grad(loss, case.params, materialize_grads=True)
            total += sum((g * p).sum() for g, p in zip(grads, case.params)).item() ** 2
            count += 1
    found = curvature.fisher_rao(case.model, each_cross_entropy, case.batches)
    assert found == pytest.approx(total / count, rel=1e-9)


def test_fisher_rao_in_training_mode_goes_through_the_batch_statistics() -> None:
    case, _ = exact("batch norm in training")
    total, count = 0.0, 0
    for batch in case.batches:
        losses = each_cross_entropy(case.model, batch)
        for loss in losses:
            grads = torch.autograd.grad(loss, case.params, retain_graph=True)
            total += sum((g * p).sum() for g, p in zip(grads, case.params)).item() ** 2
            count += 1
    found = curvature.fisher_rao(case.model, each_cross_entropy, case.batches)
    assert found == pytest.approx(total / count, rel=1e-9)


def right(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0]).argmax(1) == batch[1]


def test_pac_bayes_sharpness_is_where_the_accuracy_has_dropped() -> None:
    """On both sides of σ, with draws of our own."""
    case, _ = exact("mlp, trained")
    batches = vectors((60, 20))
    with torch.no_grad():
        batches = [(x, case.model(x).argmax(1)) for x, _ in batches]  # right by construction
    found = curvature.pac_bayes_sharpness(case.model, right, batches, num_draws=200)
    assert found.accuracy == 1
    assert found.value == pytest.approx(1 / found.sigma**2)
    drops = []
    for factor in (0.8, 1.0, 1.25):
        torch.manual_seed(0)
        accuracies = []
        for _ in range(200):
            model = copy.deepcopy(case.model)
            with torch.no_grad():
                for p in model.parameters():
                    p += factor * found.sigma * torch.randn_like(p)
                hits = [right(model, batch) for batch in batches]
            accuracies.append(torch.cat(hits).double().mean().item())
        drops.append(1 - sum(accuracies) / len(accuracies))
    assert drops[0] < 0.1 < drops[2]
    assert drops[1] == pytest.approx(0.1, abs=0.02)


def test_pac_bayes_takes_shares_and_answers_alike() -> None:
    case = Case(mlp(), vectors((30, 10)))
    with torch.no_grad():
        batches = [(x, case.model(x).argmax(1)) for x, _ in case.batches]
    found = curvature.pac_bayes_sharpness(case.model, right, batches, num_draws=3)
    by_share = curvature.pac_bayes_sharpness(
        case.model, lambda m, b: right(m, b).double().mean(), batches, num_draws=3
    )
    assert found == pytest.approx(by_share, rel=1e-12)


def test_pac_bayes_says_where_noise_does_not_matter_or_matters_at_once() -> None:
    model, x = nn.Linear(1, 1).double(), torch.ones(4, 1).double()
    with pytest.warns(UserWarning, match="under no noise"):
        found = curvature.pac_bayes_sharpness(model, lambda m, x: x > 0, [x], num_draws=1)
    assert (found.value, found.sigma) == (0.0, math.inf)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    with pytest.warns(UserWarning, match="under any noise at all"):
        found = curvature.pac_bayes_sharpness(model, lambda m, x: m(x) == 0, [x], num_draws=1)
    assert (found.value, found.sigma) == (math.inf, 0.0)


@pytest.mark.parametrize("name", ["mlp, trained", "batch norm in training", "negative trace"])
def test_bound_has_the_four_terms_of_theorem_2(name: str) -> None:
    case, H = exact(name)
    rho, gamma, delta = 0.2, 3.0, 0.01
    found = curvature.generalization_bound(
        *case.given, rho=rho, gamma=gamma, delta=delta, num_probes=50
    )
    samples = sum(len(y) for _, y in case.batches)
    squares = sum(p.detach().square().sum() for p in case.params).item()
    assert found.loss == pytest.approx(case.loss().item(), rel=1e-10)
    assert abs(found.curvature - rho**2 / 2 * H.trace().item()) < 3.5 * found.stderr
    assert found.slope == pytest.approx(gamma * case.gradient().norm().item(), rel=1e-10)
    h = (squares / rho**2 / 2 + math.log(1 / delta)) / samples
    assert found.complexity == pytest.approx(h, rel=1e-10)
    assert found.total == pytest.approx(found.loss + found.curvature + found.slope + h)
    colder = curvature.generalization_bound(
        *case.given, rho=rho, delta=delta, temperature=2 * samples, num_probes=2
    )
    assert colder.complexity == pytest.approx(h / 2, rel=1e-10)


def test_divergence_in_the_bound_is_that_of_the_two_gaussians() -> None:
    model = bowl([1.0, 2.0])
    found = curvature.generalization_bound(
        model, loss_of, ONES, rho=0.3, delta=0.5, temperature=1.0, num_probes=2
    )
    w = model.w.detach()
    prior = torch.distributions.Normal(torch.zeros_like(w), 0.3)
    posterior = torch.distributions.Normal(w, 0.3)
    kl = torch.distributions.kl_divergence(posterior, prior).sum().item()
    assert found.complexity == pytest.approx(kl + math.log(2), rel=1e-10)
