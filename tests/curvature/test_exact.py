"""Everything that comes from the Hessian, against the exact one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from crsam import curvature
from crsam.curvature.random_vectors import VectorSpace, rademacher
from curvature.cases import every_case, exact


@pytest.mark.parametrize("name", ["mlp", "batch norm in training", "attention"])
def test_the_exact_hessian_is_that_of_finite_differences(name: str) -> None:
    case, H = exact(name)
    h, weights = 1e-5, [w for p in case.params for w in p.detach().view(-1)]
    for i in range(0, len(weights), 7):
        weights[i] += h
        above = case.gradient()
        weights[i] -= 2 * h
        below = case.gradient()
        weights[i] += h
        torch.testing.assert_close((above - below) / (2 * h), H[i], rtol=1e-6, atol=1e-8)


@every_case
def test_trace_and_frobenius_norm_are_within_their_errors(name: str) -> None:
    case, H = exact(name)
    trace = curvature.hessian_trace(*case.given, num_probes=60)
    assert 0 < trace.stderr < 0.5 * H.norm()
    assert abs(trace.value - H.trace().item()) < 3.5 * trace.stderr
    norm = curvature.hessian_frobenius_norm(*case.given, num_probes=60)
    assert 0 < norm.stderr < 0.2 * H.norm()
    assert abs(norm.value - H.norm().item()) < 3.5 * norm.stderr


@every_case
def test_top_eigenvalues_are_exact_to_1e_6(name: str) -> None:
    case, H = exact(name)
    values = torch.linalg.eigvalsh(H)
    by_value = curvature.top_eigenvalues(*case.given, k=3)
    assert by_value == pytest.approx(values.flip(0)[:3].tolist(), rel=1e-6)
    by_magnitude = curvature.top_eigenvalues(*case.given, k=3, which="magnitude")
    order = values.abs().argsort(descending=True)
    assert by_magnitude == pytest.approx(values[order][:3].tolist(), rel=1e-6)


def signs(size: int, count: int) -> list[Tensor]:
    space = VectorSpace(size, torch.float64, torch.device("cpu"))
    return [rademacher(space, "probe", 0, i) for i in range(count)]


def check_density(name: str, steps: int, *functions: Callable[[Tensor], Tensor]) -> None:
    """Against ``vᵀ f(H) v`` for the same probes, those of the trace."""
    case, H = exact(name)
    density = curvature.spectral_density(*case.given, num_vectors=2, steps=steps)
    assert density.num_weights == len(H)
    torch.testing.assert_close(density.weights.sum(1), torch.ones(2, dtype=torch.float64))
    values, basis = torch.linalg.eigh(H)
    for function in functions:
        f_of_H = basis @ torch.diag(function(values)) @ basis.T
        forms = [(v @ f_of_H @ v).item() for v in signs(len(H), 2)]
        estimate = density.trace_of(function)
        assert estimate.value == pytest.approx(sum(forms) / 2, rel=1e-7, abs=1e-9)
        assert estimate.stderr == pytest.approx(abs(forms[0] - forms[1]) / 2, rel=1e-5, abs=1e-7)


@every_case
def test_density_of_few_steps_is_exact_for_polynomials(name: str) -> None:
    """Of a degree below twice the steps, those of the coarser densities too."""
    check_density(name, 6, lambda x: x, lambda x: x**2, lambda x: x**5)


@pytest.mark.parametrize("name", ["mlp, trained", "batch norm in training", "tied parameters"])
def test_density_of_many_steps_is_exact_for_smooth_functions(name: str) -> None:
    check_density(name, 40, lambda x: torch.exp(-(x**2)), torch.sin, lambda x: 1 / (x + 9))
