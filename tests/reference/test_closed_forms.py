"""The twins against closed forms on polynomials, and against steps done by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from . import TWINS
from .problems import (
    Polynomial,
    batch,
    climb,
    cross_entropy,
    followed,
    losses_and_gradients,
    network,
    own_output,
    train,
)
from .ssam import SSAM


def test_sam_on_quadratic() -> None:
    model = Polynomial()
    w = model.w.detach().clone()
    g0 = model.A @ w + model.b
    expected = g0 + 0.3 * model.A @ g0 / g0.norm()
    torch.testing.assert_close(followed(model, "sam", rho=0.3), expected)


def test_warmup_scales_the_radius_linearly() -> None:
    model = Polynomial()
    g0 = model.gradient(model.w.detach().clone())
    expected = g0 + 0.1 * model.A @ g0 / g0.norm()
    torch.testing.assert_close(followed(model, "sam", rho=0.3, warmup=3), expected)


def test_gsam_on_quadratic_takes_off_the_orthogonal_part() -> None:
    model = Polynomial()
    g0 = model.gradient(model.w.detach().clone())
    # The rate of `followed` is 1, so rho_t = 0.1 + (0.3 - 0.1) / 4.
    g_plus = g0 + 0.15 * model.A @ g0 / g0.norm()
    unit = g_plus / g_plus.norm()
    expected = g_plus - 0.4 * (g0 - torch.outer(unit, unit) @ g0)
    hyper = {"rho": 0.3, "rho_min": 0.1, "alpha": 0.4, "lr_max": 4.0, "lr_min": 0.0}
    torch.testing.assert_close(followed(model, "gsam", **hyper), expected)


def test_wsam_forms_agree_without_momentum() -> None:
    coupled = followed(Polynomial(), "wsam", rho=0.3, gamma=0.9)
    decoupled = followed(Polynomial(), "wsam", rho=0.3, gamma=0.9, decoupled=True)
    torch.testing.assert_close(coupled, decoupled)


def test_looksam_reuses_the_orthogonal_part() -> None:
    model = Polynomial()
    base = torch.optim.SGD(model.parameters(), lr=0.01)
    twin = TWINS["looksam"](model, base, own_output, rho=0.3, k=5, alpha=0.7)
    w0 = model.w.detach().clone()
    twin.step(torch.zeros(2), torch.zeros(2), 0)
    w1 = model.w.detach().clone()
    twin.step(torch.zeros(2), torch.zeros(2), 0)

    first, g0 = model.gradient(w0), model.gradient(w1)
    g_plus = first + 0.3 * model.A @ first / first.norm()
    unit = first / first.norm()
    orthogonal = g_plus - torch.outer(unit, unit) @ g_plus
    expected = w1 - 0.01 * (g0 + 0.7 * g0.norm() * orthogonal / orthogonal.norm())
    torch.testing.assert_close(model.w.detach(), expected)


def test_asam_on_quadratic() -> None:
    model = Polynomial(shape=(2, 2))
    w = model.w.detach().reshape(-1).clone()
    g0, T = model.gradient(w), torch.diag(w.abs() + 0.01)
    expected = model.gradient(w + 0.5 * T @ T @ g0 / (T @ g0).norm())
    torch.testing.assert_close(followed(model, "asam", rho=0.5, eta=0.01), expected)


def test_asam_on_vectors_is_sam() -> None:
    expected = followed(Polynomial(), "sam", rho=0.5)
    torch.testing.assert_close(followed(Polynomial(), "asam", rho=0.5, eta=0.01), expected)


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_rsam_on_quadratic(shape: tuple[int, ...]) -> None:
    model = Polynomial(shape=shape)
    w = model.w.detach().reshape(-1).clone()
    n = torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2_000_006)
    ).reshape(-1)
    size = w.norm().repeat(4)
    if shape == (2, 2):
        size = torch.stack([w[:2].norm(), w[:2].norm(), w[2:].norm(), w[2:].norm()])
    delta0 = 0.1 * n * size
    d = delta0 + 0.5 * model.gradient(w + delta0)
    expected = model.gradient(w + 0.3 * d / d.norm())
    actual = followed(model, "rsam", rho=0.3, sigma=0.1, lam=0.5, seed=2)
    torch.testing.assert_close(actual, expected)


def test_friendlysam_second_step_leaves_out_the_average() -> None:
    model = Polynomial()
    base = torch.optim.SGD(model.parameters(), lr=0.01)
    twin = TWINS["friendlysam"](model, base, own_output, rho=0.3, sigma=0.8, decay=0.6)
    w0 = model.w.detach().clone()
    twin.step(torch.zeros(2), torch.zeros(2), 0)
    w1 = model.w.detach().clone()
    twin.step(torch.zeros(2), torch.zeros(2), 0)
    first, g0 = model.gradient(w0), model.gradient(w1)
    d = g0 - 0.8 * (0.6 * 0.4 * first + 0.4 * g0)
    expected = w1 - 0.01 * model.gradient(w1 + 0.3 * d / d.norm())
    torch.testing.assert_close(model.w.detach(), expected)


def test_esam_by_hand() -> None:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = TWINS["esam"](model, base, cross_entropy, rho=0.2, beta=0.6, gamma=0.4, seed=5)
    inputs, targets = batch()
    moved = copy.deepcopy(model)
    before, _ = losses_and_gradients(moved, inputs, targets)
    u = torch.rand(6, generator=torch.Generator().manual_seed(5_000_015)).tolist()
    assert 0 < sum(u_i < 0.6 for u_i in u) < 6
    climb(moved, [0.2 / 0.6 if u_i < 0.6 else 0.0 for u_i in u])
    after, _ = losses_and_gradients(moved, inputs, targets)
    ranked = sorted(range(12), key=lambda i: (before - after)[i].item())
    chosen = sorted(ranked[:5])
    _, expected = losses_and_gradients(moved, inputs[chosen], targets[chosen])

    twin.step(inputs, targets, mask_seed=1)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_dynamic_mask_keeps_the_large_and_grows_the_rest_by_score() -> None:
    model = network()
    hyper: dict[str, Any] = {"rho": 0.1, "sparsity": 0.5, "mask": "dynamic", "period": 1}
    twin = train(model, "ssam", num_steps=2, num_samples=4, drop=0.4, total_steps=4, **hyper)
    assert isinstance(twin, SSAM)
    live = twin.M == 1
    inputs, targets = batch()
    _, gradients = losses_and_gradients(copy.deepcopy(model), inputs, targets)
    magnitude = torch.cat([gradient.reshape(-1).abs() for gradient in gradients]).tolist()
    g = torch.Generator().manual_seed(2)
    scores = torch.cat(
        [torch.rand(p.shape, dtype=p.dtype, generator=g).reshape(-1) for p in model.parameters()]
    ).tolist()
    num_weights = len(scores)
    # At t = 2 of 4 the cosine has fallen to half, so a share of 0.2 is dropped.
    num_live, num_dropped = round(num_weights / 2), int(0.2 * round(num_weights / 2))
    by_size = sorted((i for i in range(num_weights) if live[i]), key=lambda i: -magnitude[i])
    kept = set(by_size[: num_live - num_dropped])
    by_score = sorted(set(range(num_weights)) - kept, key=lambda i: -scores[i])

    twin.step(inputs, targets, mask_seed=1)
    assert set(twin.M.nonzero().reshape(-1).tolist()) == kept | set(by_score[:num_dropped])


def test_crsam_linear_on_quadratic() -> None:
    model = Polynomial()
    g0 = model.gradient(model.w.detach().clone())
    e = 0.3 * g0 / g0.norm()
    # D2 = 0 and D1 = 2 A e: a quadratic has the same curvature everywhere.
    expected = g0 + (1 + 2 * 0.2) * model.A @ e
    actual = followed(model, "crsam", rho=0.3, alpha=0.5, beta=0.2, form="linear", trust=None)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("direction", ["gradient", "random"])
@pytest.mark.parametrize("trust", [None, 0.1])
def test_crsam_on_cubic(form: str, direction: str, trust: float | None) -> None:
    model = Polynomial(cubic=2.0)
    w = model.w.detach().clone()
    g0, H = model.gradient(w), model.A + torch.diag(model.c * w)
    e = 0.3 * g0 / g0.norm()
    g_plus = model.gradient(w + e)
    r = e
    if direction == "random":
        v = torch.randn(
            4, dtype=torch.float64, generator=torch.Generator().manual_seed(2_654_435_769)
        )
        r = 0.3 * v / v.norm()
    # The loss is its own Taylor series up to the third order.
    D1, D2 = 2 * H @ r, model.c * r**2
    d1, d2 = 2 * g0 @ r + (model.c * r**3).sum() / 3, r @ H @ r
    if direction == "random" and d1 < 0:
        D1, d1 = -D1, -d1
    assert d1 > 0
    assert d2 > 0
    R = 0.5 * D2 + 0.2 * D1 if form == "linear" else 0.5 * D2 / d2 + 0.2 * D1 / d1
    if trust is not None:
        R = R * min(1.0, trust * (g_plus.norm() / R.norm()).item())
    hyper = {"form": form, "direction": direction, "trust": trust}
    actual = followed(model, "crsam", rho=0.3, alpha=0.5, beta=0.2, **hyper)
    torch.testing.assert_close(actual, g_plus + R, rtol=1e-11, atol=1e-11)


def test_crsam_log_drops_a_curvature_that_is_not_positive() -> None:
    model = Polynomial()
    model.A = -model.A
    g0 = model.gradient(model.w.detach().clone())
    e = 0.01 * g0 / g0.norm()
    assert e @ model.A @ e < 0
    expected = g0 + model.A @ e + 0.2 * model.A @ e / (g0 @ e)
    actual = followed(model, "crsam", rho=0.01, alpha=0.5, beta=0.2, form="log", trust=None)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_group_overrides_the_radius_but_not_the_norm() -> None:
    model = network()
    groups: list[dict[str, Any]] = [
        {"params": list(model[0].parameters()), "rho": 0.0},
        {"params": [*model[1].parameters(), *model[4].parameters()]},
    ]
    base = torch.optim.SGD(groups, lr=0.1)
    twin = TWINS["sam"](model, base, cross_entropy, rho=0.2)

    inputs, targets = batch()
    moved = copy.deepcopy(model)
    losses_and_gradients(moved, inputs, targets)
    climb(moved, [0.0, 0.0, 0.2, 0.2, 0.2, 0.2])
    _, expected = losses_and_gradients(moved, inputs, targets)

    twin.step(inputs, targets, mask_seed=1)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_aesam_pays_when_the_gradient_is_large() -> None:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    hyper: dict[str, Any] = {"lambda1": -0.5, "lambda2": 0.5, "decay": 0.5, "total_steps": 6}
    twin = TWINS["aesam"](model, base, cross_entropy, rho=0.2, **hyper)
    mu = variance = 0.0
    paid = []
    for t in range(8):
        inputs, targets = batch(t)
        by_hand = copy.deepcopy(model)
        _, expected = losses_and_gradients(by_hand, inputs, targets)
        squared = sum(gradient.square().sum().item() for gradient in expected)
        mu = (mu + squared) / 2
        variance = (variance + (squared - mu) ** 2) / 2
        paid.append(squared >= mu + (0.5 - min(t / 6, 1)) * variance**0.5)
        if paid[-1]:
            climb(by_hand, [0.2] * 6)
            _, expected = losses_and_gradients(by_hand, inputs, targets)

        twin.step(inputs, targets, mask_seed=1)
        for p, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, gradient)
    assert 0 < sum(paid) < 8
