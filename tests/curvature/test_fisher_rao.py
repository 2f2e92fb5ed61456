"""The Fisher–Rao norm against the slope of each sample."""

from __future__ import annotations

import pytest
import torch

from crsam import curvature
from curvature.cases import (
    each_cross_entropy,
    exact,
    mean_cross_entropy,
)


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
