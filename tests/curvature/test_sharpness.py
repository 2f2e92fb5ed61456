"""Sharpness: closed forms on quadratics, bounds on the ascent, invariance."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from crsam.curvature.ascent import Ball, Box, backtracking_ascent
from crsam.curvature.mean_loss import MeanLoss
from crsam.errors import UserError
from curvature.bowls import ONES, Bowl, bowl, loss_of
from curvature.cases import Case, exact, mean_cross_entropy, mlp, vectors


def highest_in_ball(A: Tensor, g: Tensor, rho: float) -> float:
    """``max gᵀe + ½ eᵀAe`` over ``‖e‖ ≤ ρ`` by its optimality condition ``(μI − A) e = g``."""
    values, Q = torch.linalg.eigh(A)
    c = Q.T @ g

    def e(mu: float) -> Tensor:
        return c / (mu - values)

    low, high = values[-1].item() + 1e-12, values[-1].item() + g.norm().item() / rho + 1
    if values[-1] < 0 and e(0.0).norm() <= rho:
        low = high = 0.0  # the top is inside
    for _ in range(200):
        mu = (low + high) / 2
        low, high = (mu, high) if e(mu).norm() > rho else (low, mu)
    step = e(high)
    return (c @ step + (values * step**2).sum() / 2).item()


@pytest.mark.parametrize("eigenvalues", [[5.0, 1.0, 0.1], [4.0, -1.0, -8.0], [-3.0, -2.0, -1.0]])
@pytest.mark.parametrize("rho", [0.05, 0.5, 2.0])
def test_sharpness_of_a_quadratic(eigenvalues: list[float], rho: float) -> None:
    model = bowl(eigenvalues)
    with torch.no_grad():
        g = model.A @ model.w + model.b
    one = rho * g.norm() + rho**2 / 2 * (g @ model.A @ g) / (g @ g)
    assert curvature.sharpness(model, loss_of, ONES, rho=rho) == pytest.approx(one.item(), rel=1e-9)
    truth = highest_in_ball(model.A, g, rho)
    many = curvature.sharpness(model, loss_of, ONES, rho=rho, steps=60)
    assert max(one.item(), 0.0) <= many <= truth * (1 + 1e-9)
    assert many == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("name", ["mlp, relu", "mlp, trained", "batch norm in training"])
@pytest.mark.parametrize("rho", [0.05, 0.5, 3.0])
def test_more_steps_are_never_lower(name: str, rho: float) -> None:
    case, _ = exact(name)
    rises = [curvature.sharpness(*case.given, rho=rho, steps=n) for n in (1, 2, 5, 20)]
    assert rises[0] <= rises[1] <= rises[2] <= rises[3]
    assert rises[3] >= 0


def test_the_ascent_stays_in_its_region() -> None:
    case, _ = exact("mlp")
    with MeanLoss(*case.given) as loss:
        for steps in (1, 9):
            peak = backtracking_ascent(loss, Ball(0.3), steps)
            assert math.sqrt(sum(o.square().sum() for o in peak.offset)) <= 0.3 * (1 + 1e-12)
            scale = [p.detach().abs() for p in loss.params]
            peak = backtracking_ascent(loss, Ball(0.3, scale), steps)
            relative = [o / s for o, s in zip(peak.offset, scale)]
            assert math.sqrt(sum(r.square().sum() for r in relative)) <= 0.3 * (1 + 1e-9)
            peak = backtracking_ascent(loss, Box([0.01 * s for s in scale]), steps)
            assert all(
                (o.abs() <= 0.01 * s * (1 + 1e-12)).all() for o, s in zip(peak.offset, scale)
            )


def test_what_is_returned_is_the_rise_at_the_offset() -> None:
    case, _ = exact("mlp, trained")
    with MeanLoss(*case.given) as loss:
        peak = backtracking_ascent(loss, Ball(0.4), 7)
    with torch.no_grad():
        here = case.loss().item()
        for p, o in zip(case.params, peak.offset):
            p += o
        there = case.loss().item()
        for p, o in zip(case.params, peak.offset):
            p -= o
    assert peak.rise == pytest.approx(there - here, rel=1e-9)
    assert peak.loss == pytest.approx(there, rel=1e-9)


def test_a_stationary_point_has_no_one_step_sharpness() -> None:
    model = bowl([2.0, 1.0])
    with torch.no_grad():
        model.w.zero_()
        model.b.zero_()
    assert curvature.sharpness(model, loss_of, ONES) == 0
    with pytest.warns(UserWarning, match="nowhere higher"):
        assert curvature.sharpness(model, loss_of, ONES, steps=5) == 0


def test_one_step_may_go_down_and_says_so() -> None:
    """As in training, where SAM follows wherever its one step leads."""
    model = bowl([-100.0, -90.0])
    assert curvature.sharpness(model, loss_of, ONES, rho=5.0) < 0
    with pytest.warns(UserWarning, match="nowhere higher"):
        assert curvature.sharpness(model, loss_of, ONES, rho=5.0, steps=2) == 0


def test_too_far_a_move_is_told() -> None:
    model = nn.Linear(1, 1).double()
    with pytest.raises(
        UserError, match=r"loss_fn returned inf at weights moved this far, on batch 0"
    ):
        curvature.sharpness(
            model, lambda m, x: torch.exp(m(x)).mean(), [torch.ones(2, 1).double()], rho=1e4
        )


def rescaled(model: nn.Sequential, by: float) -> nn.Sequential:
    """The same function: what one layer is larger by, the next is smaller."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= by
        twin[0].bias *= by
        twin[2].weight /= by
    return twin


def test_adaptive_sharpness_does_not_depend_on_the_scale_of_layers() -> None:
    case = Case(mlp(nn.ReLU), vectors((6, 3)))
    twin = Case(rescaled(case.model, 10.0), case.batches)
    for measure, options in [
        (curvature.adaptive_sharpness, {"rho": 0.2, "steps": 5}),
        (curvature.average_sharpness, {"rho": 0.2, "num_draws": 3}),
    ]:
        assert measure(*case.given, **options) == pytest.approx(
            measure(*twin.given, **options), rel=1e-9
        )
    plain = [curvature.sharpness(*c.given, rho=0.2) for c in (case, twin)]
    assert plain[0] != pytest.approx(plain[1], rel=0.1)


def test_adaptive_sharpness_of_one_step_is_asams() -> None:
    case, _ = exact("mlp")
    w = torch.cat([p.detach().flatten() for p in case.params])
    g = case.gradient()
    e = 0.1 * w**2 * g / (w * g).norm()
    here = case.loss().item()
    moved = copy.deepcopy(case.model)
    nn.utils.vector_to_parameters(w + e, moved.parameters())
    expected = Case(moved, case.batches).loss().item() - here
    found = curvature.adaptive_sharpness(*case.given, rho=0.1, steps=1)
    assert found == pytest.approx(expected, rel=1e-9)


def test_average_sharpness_of_a_quadratic_is_half_the_trace() -> None:
    """``E[½ eᵀAe]`` is ``ρ²/2 · Σ c_i² A_ii``, with ``c = |w|`` or 1."""
    model = bowl([5.0, 2.0, -1.0, 0.5])
    diagonal = model.A.diag()
    for adaptive in (False, True):
        scale = model.w.detach() ** 2 if adaptive else torch.ones(4)
        truth = 0.3**2 / 2 * (scale * diagonal).sum().item()
        found = curvature.average_sharpness(
            model, loss_of, ONES, rho=0.3, adaptive=adaptive, num_draws=400
        )
        assert abs(found.value - truth) < 3.5 * found.stderr
        assert found.stderr < 0.2 * abs(truth) + 0.02


def test_epsilon_sharpness_of_a_linear_loss_is_at_the_corner() -> None:
    w = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64)
    b = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    model = Bowl(torch.zeros(3, 3, dtype=torch.float64), b, w)
    rise = 0.01 * (b.abs() * (w.abs() + 1)).sum().item()
    expected = 100 * rise / (1 + (b @ w).item())
    for steps in (1, 6):
        found = curvature.epsilon_sharpness(model, loss_of, ONES, epsilon=0.01, steps=steps)
        assert found == pytest.approx(expected, rel=1e-9)


def test_epsilon_sharpness_of_a_separable_loss_is_the_best_corner() -> None:
    g = torch.Generator().manual_seed(1)
    w, b = torch.randn(2, 6, dtype=torch.float64, generator=g)
    A = torch.diag(torch.rand(6, dtype=torch.float64, generator=g) * 4)
    model = Bowl(A, b, w)
    sides = 0.5 * (w.abs() + 1)
    slope = A @ w + b
    rise = (slope.abs() * sides + A.diag() * sides**2 / 2).sum().item()
    here = model(ONES[0]).item()
    found = curvature.epsilon_sharpness(model, loss_of, ONES, epsilon=0.5)
    assert found == pytest.approx(100 * rise / (1 + here), rel=1e-9)


def test_unequal_batches_share_one_ascent() -> None:
    case = Case(mlp(), vectors((6, 1, 3)))
    x, y = (torch.cat(parts) for parts in zip(*case.batches))
    whole = [(x, y)]
    for measure in (curvature.sharpness, curvature.adaptive_sharpness, curvature.epsilon_sharpness):
        split = measure(*case.given, steps=4)
        assert split == pytest.approx(
            measure(case.model, mean_cross_entropy, whole, steps=4), rel=1e-8
        )
