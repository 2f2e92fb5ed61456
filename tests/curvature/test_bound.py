"""The terms of Theorem 2 against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from crsam import curvature
from curvature.bowls import ONES, bowl, loss_of
from curvature.cases import (
    exact,
)


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
