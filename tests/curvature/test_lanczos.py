"""Lanczos: repeated eigenvalues, exhausted spaces, float32, and what comes of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from crsam.curvature.lanczos import Lanczos
from crsam.errors import UserError
from curvature.cases import Case, exact, mlp, vectors


class Quadratic(nn.Module):
    """A loss with a given Hessian."""

    def __init__(self, H: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(len(H), dtype=H.dtype))
        self.H = H

    def forward(self, ones: Tensor) -> Tensor:
        return (self.w @ self.H @ self.w / 2 + self.w.sum()) * ones.mean()


def with_eigenvalues(values: list[float], dtype: torch.dtype = torch.float64) -> Quadratic:
    g = torch.Generator().manual_seed(0)
    random = torch.randn(len(values), len(values), dtype=torch.float64, generator=g)
    basis = torch.linalg.qr(random).Q
    H = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    return Quadratic(H.to(dtype))


def top(model: nn.Module, **options: object) -> list[float]:
    batches = [torch.ones(2, dtype=model.w.dtype), torch.ones(1, dtype=model.w.dtype)]
    return curvature.top_eigenvalues(model, lambda m, x: m(x), batches, **options)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7])
def test_repeated_eigenvalues_are_all_found(k: int) -> None:
    values = [5.0, 5.0, 5.0, 2.0, 2.0, 0.0, -6.0, -6.0]
    model = with_eigenvalues(values)
    assert top(model, k=k) == pytest.approx(values[:k], rel=1e-6, abs=1e-9)


def test_by_magnitude_means_farthest_from_zero_with_sign() -> None:
    model = with_eigenvalues([5.0, 4.0, 1.0, 0.0, -4.5, -6.0])
    assert top(model, k=4, which="magnitude") == pytest.approx([-6.0, 5.0, -4.5, 4.0], rel=1e-6)
    assert top(model, k=1) == pytest.approx([5.0], rel=1e-6)


def test_eigenvectors_are_of_norm_one_and_belong_to_their_values() -> None:
    model = with_eigenvalues([5.0, 5.0, 2.0, 0.0, -6.0])
    pairs = curvature.top_eigenpairs(model, lambda m, x: m(x), [torch.ones(1).double()], k=3)
    assert [pair.value for pair in pairs] == pytest.approx(top(model, k=3))
    vectors = torch.stack([pair.vector["w"] for pair in pairs])
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(3).double(), rtol=0, atol=1e-6)
    for pair in pairs:
        residual = model.H @ pair.vector["w"] - pair.value * pair.vector["w"]
        assert residual.norm() < 1e-5


def test_all_eigenvalues_can_be_asked_for() -> None:
    values = [9.0, 4.0, 4.0, 1.0, -2.0]
    assert top(with_eigenvalues(values), k=5) == pytest.approx(values, rel=1e-6)
    with pytest.raises(UserError, match="k is 6, but there are only 5"):
        top(with_eigenvalues(values), k=6)


def test_close_eigenvalues_below_an_outlier_are_told_apart() -> None:
    values = [1000.0, 1.002, 1.001, 1.0, *(0.5 * 0.97**i for i in range(60))]
    assert top(with_eigenvalues(values), k=4) == pytest.approx(values[:4], rel=1e-6)


def test_float32_is_good_to_its_tolerance() -> None:
    values = [50.0, 20.0, 10.0, *(0.9**i for i in range(40))]
    found = top(with_eigenvalues(values, torch.float32), k=3)
    assert found == pytest.approx(values[:3], rel=1e-4)


def test_too_few_steps_are_told() -> None:
    values = [1.0 - 0.001 * i for i in range(80)]
    with pytest.warns(UserWarning, match=r"1 of 1 eigenvalues have not converged in 4 steps"):
        (found,) = top(with_eigenvalues(values), max_steps=4)
    assert 0.9 < found < 1.0


def test_seed_changes_nothing_but_rounding() -> None:
    case, _ = exact("mlp")
    a, b = (curvature.top_eigenvalues(*case.given, k=2, seed=seed) for seed in (0, 1))
    assert a == pytest.approx(b, rel=1e-8)
    assert a != b


def test_basis_stays_orthogonal_and_ritz_values_have_no_ghosts() -> None:
    values = torch.cat([torch.tensor([1e4, 1e3]), torch.linspace(-1, 1, 98)])
    H = torch.diag(values)  # float32, where plain Lanczos loses orthogonality in a few steps
    lanczos = Lanczos(lambda v: H @ v, torch.ones(100))
    for _ in range(60):
        lanczos.step()
    Q = torch.stack(lanczos.basis)
    assert (Q @ Q.T - torch.eye(60)).abs().max() < 1e-5
    assert (lanczos.ritz().values > 100).sum() == 2


def test_residuals_are_those_of_the_vectors() -> None:
    g = torch.Generator().manual_seed(0)
    A = torch.randn(30, 30, dtype=torch.float64, generator=g)
    H = A + A.T
    lanczos = Lanczos(lambda v: H @ v, torch.ones(30, dtype=torch.float64))
    for _ in range(12):
        lanczos.step()
    ritz = lanczos.ritz()
    for i in range(12):
        x = lanczos.vector(ritz.vectors[:, i])
        residual = (H @ x - ritz.values[i] * x).norm()
        assert ritz.residuals[i].item() == pytest.approx(residual.item(), rel=1e-6, abs=1e-12)


def test_density_of_few_distinct_eigenvalues_stops_early_and_pads_with_weight_0() -> None:
    model = with_eigenvalues([4.0] * 3 + [1.0] * 5)
    density = curvature.spectral_density(
        model, lambda m, x: m(x), [torch.ones(1).double()], num_vectors=3, steps=6
    )
    assert density.nodes.shape == density.weights.shape == (3, 6)
    assert (density.weights[:, 2:] == 0).all()
    torch.testing.assert_close(density.nodes[:, :2], torch.tensor([[1.0, 4.0]] * 3).double())
    assert density.trace_of(lambda x: 1 / x).value > 0  # no 1/0 from the padding


def test_smoothed_density_integrates_to_one_and_peaks_at_the_nodes() -> None:
    model = with_eigenvalues([4.0] * 4 + [1.0] * 4)
    density = curvature.spectral_density(
        model, lambda m, x: m(x), [torch.ones(1).double()], num_vectors=3, steps=6
    )
    points = torch.linspace(-5, 10, 1501)
    heights = density.smoothed(points, width=0.1)
    assert torch.trapezoid(heights, points.double()).item() == pytest.approx(1, rel=1e-6)
    assert points[heights[:750].argmax()].item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("name", "z"), [("mlp, trained", 0.01), ("mlp", 0.1), ("mlp", 1.0)])
def test_effective_dimensionality_is_within_its_error(name: str, z: float) -> None:
    case, H = exact(name)
    positive = torch.linalg.eigvalsh(H).clamp(min=0)
    truth = (positive / (positive + z)).sum().item()
    found = curvature.effective_dimensionality(*case.given, z=z, num_vectors=20, steps=15)
    assert found.stderr < 0.3 * truth
    assert abs(found.value - truth) < 3.5 * found.stderr


def test_error_of_the_quadrature_is_told() -> None:
    """A kink where most eigenvalues are: a few points cannot see it, however many vectors."""
    values = torch.cat([torch.linspace(-1, 1, 9), torch.linspace(-1e-3, 1e-3, 71)])
    model = with_eigenvalues(values.tolist())
    truth = (values > 0).sum().item()
    given = (model, lambda m, x: m(x), [torch.ones(1).double()])
    for steps in (6, 8, 12, 16):
        density = curvature.spectral_density(*given, num_vectors=40, steps=steps)
        found = density.trace_of(lambda x: (x > 0).double())
        assert abs(found.value - truth) < 3 * found.stderr
    chance = density._replace(coarser=()).trace_of(lambda x: (x > 0).double())
    assert found.stderr > 2 * chance.stderr


def test_density_error_falls_with_vectors() -> None:
    case = Case(mlp(), vectors((4,)))
    few, many = (
        curvature.spectral_density(*case.given, num_vectors=n, steps=4).trace_of(lambda x: x)
        for n in (10, 160)
    )
    assert many.stderr < 0.5 * few.stderr
    assert not math.isnan(few.stderr)
