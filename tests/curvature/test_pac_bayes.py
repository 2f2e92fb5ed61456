"""The noise that the weights bear, against a search by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from curvature.cases import (
    Case,
    exact,
    mlp,
    vectors,
)


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
