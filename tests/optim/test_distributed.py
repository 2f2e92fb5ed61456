"""Two processes, as replicas or as shards, do what one does; started once for all tests here."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed as dist, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as Replica
from torch.optim import SGD

import crsam
from crsam.errors import UserError
from optim.combos import METHODS
from optim.spread_problem import (
    batches,
    go_on,
    net,
    optimizer,
    samples,
    share,
    trained,
    weights,
)

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)
every_method = pytest.mark.parametrize("name", METHODS)
SHARDS_ON_CPU = hasattr(torch.Stream, "record_event") and torch.__version__ >= "2.7"
needs_shards = pytest.mark.skipif(not SHARDS_ON_CPU, reason="torch cannot shard on a CPU yet")


def sharded(model: nn.Sequential, **options: Any) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh, **options)
    return model


def replicas_by_scope(rank: int) -> dict[str, Any]:
    return {
        scope: {
            name: _weights_of(name, Replica(net()), share(rank), 2 if scope == "micro" else 1, scope)
            for name in METHODS
        }
        for scope in ("batch", "rank", "micro")
    }


def shards_by_scope(rank: int) -> dict[str, Any]:
    return {
        scope: {
            name: _weights_of(name, sharded(net()), share(rank), 2, scope) for name in METHODS
        }
        for scope in ("batch", "micro")
    }


def _weights_of(
    name: str, model: nn.Module, mine: slice, accumulate: int, scope: str
) -> list[Tensor]:
    trained(name, model, mine, accumulate, scope=scope)
    return weights(model)


JOBS: dict[str, Callable[[int], Any]] = {"replicas": replicas_by_scope}
if SHARDS_ON_CPU:
    JOBS["shards"] = shards_by_scope


def on_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    found: dict[str, Any] = {}
    try:
        for name, job in JOBS.items():
            found[name] = job(rank)
    except BaseException:
        found["failed"] = traceback.format_exc()
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=on_rank, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    found = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    for each in found:
        assert "failed" not in each, each["failed"]
    return found


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@every_method
def test_two_replicas_climb_and_follow_the_whole_batch(name: str, ranks: list[Any]) -> None:
    model = net()
    trained(name, model)
    for each in ranks:
        assert_close(each["replicas"]["batch"][name], weights(model))


@every_method
def test_two_replicas_that_climb_alone_are_one_process_with_two_micro_batches(
    name: str, ranks: list[Any]
) -> None:
    model = net()
    trained(name, model, accumulate=2, scope="micro")
    for each in ranks:
        assert_close(each["replicas"]["rank"][name], weights(model))


@every_method
def test_micro_batches_of_two_replicas_are_those_of_one_process(
    name: str, ranks: list[Any]
) -> None:
    model = net()
    trained(name, model, accumulate=4, scope="micro")
    for each in ranks:
        assert_close(each["replicas"]["micro"][name], weights(model))


@needs_shards
@every_method
def test_two_shards_climb_and_follow_the_whole_batch(name: str, ranks: list[Any]) -> None:
    model = net()
    trained(name, model)
    for each in ranks:
        assert_close(each["shards"]["batch"][name], weights(model))


@needs_shards
@every_method
def test_micro_batches_of_two_shards_are_those_of_all_processes(
    name: str, ranks: list[Any]
) -> None:
    """The first halves of both shares, then the second halves."""
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    model = net()
    trained(name, model, order, accumulate=2, scope="micro")
    for each in ranks:
        assert_close(each["shards"]["micro"][name], weights(model))
