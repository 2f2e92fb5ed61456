"""Two ranks that share the points get the array of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import distributed as dist

import problems
from crsam import landscape
from crsam.errors import UserError
from landscape.test_resume import same, whole
from landscape.test_surface import data, losses_and_right, mean_loss
from two_ranks import found_by_two_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)
STRATEGIES: list[dict[str, Any]] = [
    {},
    {"x": [-1.0, 0.0, 1.0], "directions": 1},  # an odd number of points
    {"at_once": 3},
    {"batch_norm": "recomputed", "x": [0.0, 1.0]},
    {"loss_fn": mean_loss, "x": [0.0, 1.0]},
]


def on_rank(rank: int, folder: Path) -> dict[str, Any]:
    group, file = dist.group.WORLD, folder / "a.npz"
    calls: list[float] = []

    def counted(model: Any, batch: Any) -> Any:
        calls.append(1)
        return losses_and_right(model, batch)

    found: dict[str, Any] = {"surfaces": [vars(whole(group=group, **way)) for way in STRATEGIES]}
    stop = [rank == 1 and n == 2 for n in range(9)]  # one rank is asked, both stop
    part = whole(file, group=group, stop=lambda: stop.pop(0))
    found["stopped"] = int(np.isnan(part.loss).sum())
    found["resumed"] = vars(whole(file, counted, group=group))
    found["calls"] = len(calls)
    try:
        landscape.surface(problems.conv_net(), mean_loss, data(5 + rank), group=group)
    except UserError as error:
        found["data differ"] = str(error)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"))


def test_every_rank_gets_the_array_of_one_process(ranks: list[dict[str, Any]]) -> None:
    for k, way in enumerate(STRATEGIES):
        alone = whole(**way)
        for each in ranks:
            same(alone, landscape.Surface(**each["surfaces"][k]))


def test_both_stop_together_and_share_what_is_left(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert each["stopped"] == 16 - 2 * 3
        same(whole(), landscape.Surface(**each["resumed"]))
        assert each["calls"] == 2 * (5 + 1)  # half of those left and one again, two batches each


def test_ranks_that_see_different_data_are_told(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert "do not have the same weights, directions and batches" in each["data differ"]
