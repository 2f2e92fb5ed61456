"""Two ranks that share the probes get what one process gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from crsam import curvature
from crsam.errors import UserError
from curvature.cases import Case, conv_net, images, mean_cross_entropy, mlp, vectors
from curvature.functions import numbers
from two_ranks import found_by_two_ranks

pytestmark = [
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore:.*probes do not tell the trace"),
]


def measured(group: Any) -> list[list[float]]:
    """All that can be shared; odd numbers, so that the ranks' shares differ."""
    given = Case(mlp(), vectors((5, 3))).given
    return [
        numbers(found)
        for found in (
            curvature.hessian_trace(*given, num_probes=7, group=group),
            curvature.hessian_frobenius_norm(*given, num_probes=5, chunk=2, group=group),
            curvature.normalized_trace(*given, num_probes=7, seed=3, group=group),
            curvature.generalization_bound(*given, num_probes=3, group=group),
            curvature.spectral_density(*given, num_vectors=3, steps=4, group=group),
            curvature.effective_dimensionality(*given, num_vectors=3, steps=4, group=group),
            curvature.average_sharpness(*given, num_draws=3, group=group),
        )
    ]


def on_rank(rank: int, folder: Path) -> dict[str, Any]:
    world = dist.group.WORLD
    found: dict[str, Any] = {"shared": measured(world)}
    case = Case(mlp(), vectors((5, 3)))
    try:
        part = case.batches[rank : rank + 1]
        curvature.hessian_trace(case.model, mean_cross_entropy, part, num_probes=3, group=world)
    except UserError as error:
        found["data differ"] = str(error)
    wrapped = torch.nn.parallel.DistributedDataParallel(conv_net())
    if rank == 0:  # the other does not join in, not even for the batch-norm statistics
        found["alone"] = list(
            curvature.hessian_trace(wrapped, mean_cross_entropy, images((5, 3)), num_probes=3)
        )
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"))


def test_every_rank_gets_the_estimate_of_one_process(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["shared"] == ranks[1]["shared"]
    alone = measured(None)
    assert len(alone) == len(ranks[0]["shared"])
    for ours, expected in zip(ranks[0]["shared"], alone):
        assert ours == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_ranks_that_see_different_data_are_told(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert "each must have the same weights and go over all the data" in each["data differ"]


def test_one_rank_can_measure_a_wrapped_model_alone(ranks: list[dict[str, Any]]) -> None:
    expected = curvature.hessian_trace(conv_net(), mean_cross_entropy, images((5, 3)), num_probes=3)
    assert ranks[0]["alone"] == pytest.approx(list(expected), rel=1e-12)
