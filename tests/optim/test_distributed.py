"""Two processes, as replicas or as shards, do what one does; started once for all tests here."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as Replica
from torch.optim import SGD

import crsam
from crsam import _tensors as tn
from crsam.errors import UserError
from crsam.optim import Curvature, Gradient, PartOfBatch
from crsam.optim.functional import Functional
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
from two_ranks import already_found, found_by_two_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)
every_method = pytest.mark.parametrize("name", METHODS)
SHARDS_ON_CPU = hasattr(torch.Stream, "record_event") and torch.__version__ >= "2.7"


def sharded(model: nn.Sequential, **options: Any) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh, **options)
    return model


def replicas_by_scope(rank: int, folder: Path) -> dict[str, Any]:
    return {
        scope: {
            name: _weights_of(
                name, Replica(net()), share(rank), 2 if scope == "micro" else 1, scope
            )
            for name in METHODS
        }
        for scope in ("batch", "rank", "micro")
    }


def shards_by_scope(rank: int, folder: Path) -> dict[str, Any]:
    return {
        scope: {name: _weights_of(name, sharded(net()), share(rank), 2, scope) for name in METHODS}
        for scope in ("batch", "micro")
    }


def _weights_of(
    name: str, model: nn.Module, mine: slice, accumulate: int, scope: str
) -> list[Tensor]:
    trained(name, model, mine, accumulate, scope=scope)
    return weights(model)


class Leaves(nn.Module):
    """One layer is used by the second process only, one by none."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.body = rank, net()
        self.seldom, self.never = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        return self.seldom(out) if self.rank == 1 else out


WRAPPED: dict[str, dict[str, Any]] = {
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "both": {"gradient_as_bucket_view": True, "static_graph": True},
}
A_FEW = ["sam", "crsam", "esam", "looksam", "ssam-fisher", "friendlysam"]


IN_BFLOAT16 = ["sam", "crsam-linear", "esam", "looksam", "friendlysam"]  # the log form has a floor


def wrapped_otherwise(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for how, options in WRAPPED.items():
        for scope in ("batch", "rank"):
            for name in A_FEW:
                model = Replica(net(), **options)
                trained(name, model, share(rank), scope=scope)
                found[how, scope, name] = weights(model)
    return found


def left_out(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for scope in ("batch", "rank"):
        for name in ("sam", "crsam"):
            torch.manual_seed(0)
            model = Replica(Leaves(rank), find_unused_parameters=True)
            before = weights(model.module.seldom), weights(model.module.never)
            trained(name, model, share(rank), scope=scope)
            after = weights(model.module.seldom), weights(model.module.never)
            found[scope, name] = {"moved": before, "after": after, "all": weights(model)}
    return found


def three_hundred_steps(rank: int, folder: Path) -> dict[str, list[Tensor]]:
    """In float32, where sums in another order would show."""
    found = {}
    data = [(x[share(rank)], y[share(rank)]) for x, y in batches(20, torch.float32)]
    for i, name in enumerate(METHODS):
        model = Replica(net(torch.float32))
        opt = optimizer(name, model, scope=("batch", "rank")[i % 2], max_norm=0.5)
        for t in range(300):
            opt.step(samples(model, *data[t % 20]))
        state = opt.state_dict()
        kept = [t for entry in state["state"].values() for t in entry.values()]
        found[name] = [*weights(model), *kept]
    return found


def groups_of_one(rank: int, folder: Path) -> list[Tensor]:
    """Each process trains a model of its own on its own samples."""
    groups = [dist.new_group([r]) for r in range(2)]
    model = net()
    trained("crsam", model, share(rank), group=groups[rank])
    wrapped = Replica(net(), process_group=groups[rank])
    trained("crsam", wrapped, share(rank))
    return [*weights(model), *weights(wrapped)]


def one_overflows(rank: int, folder: Path) -> dict[str, Any]:
    return {scope: _overflow_in_the_second(rank, scope) for scope in ("batch", "rank")}


def _overflow_in_the_second(rank: int, scope: str) -> dict[str, Any]:
    """A gradient that overflows in the second process only, in the second pass."""
    model = Replica(net(torch.float32))
    opt = optimizer("crsam-linear", model, scope=scope)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    before = weights(model)
    x, y = batches(1, torch.float32)[0]
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        opt.zero_grad()
        loss = F.cross_entropy(model(x[share(rank)]), y[share(rank)])
        scaler.scale(loss * (torch.inf if passes == 2 and rank == 1 else 1.0)).backward()
        return loss

    opt.step(closure, scaler=scaler)
    scaler.update()
    return {"before": before, "after": weights(model), "scale": scaler.get_scale()}


def functionals(rank: int, folder: Path) -> dict[str, Any]:
    """Model and loss known, with and without a wrapper around the model."""
    found: dict[str, Any] = {}
    for scope in ("batch", "rank"):
        for name in ("sam", "crsam", "looksam"):
            model = Replica(net())
            follow_functional(optimizer(name, model, scope=scope), model.module, share(rank))
            found[scope, name] = weights(model)
    return found


def fused_functional(rank: int, folder: Path) -> list[Tensor]:
    model = net()
    with tn.fusing(), torch.compiler.set_stance("force_eager"):
        follow_functional(optimizer("crsam", model), model, share(rank))
    return weights(model)


def follow_functional(opt: Any, model: nn.Module, mine: slice) -> None:
    functional = Functional(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    for x, y in batches():
        functional.batch = x[mine], y[mine]
        opt.step(functional)


def refusals(rank: int, folder: Path) -> dict[str, str]:
    wrong: dict[str, Callable[[], Any]] = {
        "no wrapper": lambda: trained("sam", net(), share(rank), scope="rank"),
        "micro": lambda: trained("sam", net(), share(rank), 2, scope="micro"),
    }
    return _told(wrong)


def refusals_of_shards(rank: int, folder: Path) -> dict[str, str]:
    x, y = batches(1)[0]
    model = sharded(net())
    bare = crsam.SAM(SGD(model.parameters(), lr=0.1))
    return _told(
        {
            "shards alone": lambda: trained("sam", model, share(rank), scope="rank"),
            "no model": lambda: bare.step(samples(model, x, y)),
            "functional": lambda: follow_functional(optimizer("sam", model), model, share(rank)),
        }
    )


def _told(wrong: dict[str, Callable[[], Any]]) -> dict[str, str]:
    told = {}
    for case, act in wrong.items():
        try:
            act()
        except UserError as error:
            told[case] = str(error)
    return told


def checkpoints(rank: int, folder: Path) -> dict[str, list[Tensor]]:
    """Saved by two shards after three steps, and what they then go on to."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    found = {}
    for name in METHODS:
        model = sharded(net())
        opt = trained(name, model, share(rank), steps=range(3))
        states = get_state_dict(model, opt)
        dcp.save(dict(zip(("model", "opt"), states)), checkpoint_id=f"{folder}/{name}")
        go_on(opt, model, share(rank), 1, range(3, 6))
        found[name] = weights(model)
    return found


def tensor_parallel(rank: int, folder: Path) -> dict[str, list[Tensor]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    found = {}
    for name in METHODS:
        model = net(width=8)
        mesh = init_device_mesh("cpu", (2,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        trained(name, model)
        found[name] = weights(model)
    return found


def gathered_weights(rank: int, folder: Path) -> list[Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net(), mesh=init_device_mesh("cpu", (2,)))  # kept gathered by a forward
    forward_then_center(model, share(rank))
    return weights(model)


def forward_then_center(model: nn.Module, mine: slice) -> None:
    """A step takes a forward at w + e and then a pass at w; between steps there is another one."""
    base = SGD(model.parameters(), lr=0.1)
    objective = Curvature(0.5, 0.1, form="linear")
    opt = crsam.SharpnessAware(base, Gradient(0.5), objective, PartOfBatch(), model=model)
    for x, y in batches():
        opt.step(samples(model, x[mine], y[mine]))
        with torch.no_grad():
            model(x[mine])


def mixed_precision(rank: int, folder: Path) -> dict[str, Any]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = {}
    for name in IN_BFLOAT16:
        model = sharded(net(torch.float32), mp_policy=policy)
        trained(name, model, share(rank))
        found[name] = weights(model)
        assert all(p.dtype == torch.float32 for p in model.parameters())
    return found


JOBS: dict[str, dict[str, Callable[[int, Path], Any]]] = {
    "replicas": {
        "by scope": replicas_by_scope,
        "wrapped": wrapped_otherwise,
        "left out": left_out,
        "300 steps": three_hundred_steps,
        "groups": groups_of_one,
        "overflow": one_overflows,
        "functional": functionals,
        "fused functional": fused_functional,
        "refusals": refusals,
    },
    "shards": {
        "by scope": shards_by_scope,
        "tensor parallel": tensor_parallel,
        "mixed precision": mixed_precision,
        "gathered": gathered_weights,
        "refusals": refusals_of_shards,
        "checkpoints": checkpoints,
    },
}


def all_jobs(kind: str, rank: int, folder: Path) -> dict[str, Any]:
    return {name: job(rank, folder) for name, job in JOBS[kind].items()}


def from_two_processes(kind: str, factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """What both found, and where they wrote; run once, whichever worker of pytest comes first."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / kind
    with FileLock(shared / f"{kind}.lock"):
        if folder.exists():
            return already_found(folder), folder
        folder.mkdir()
        return found_by_two_ranks(partial(all_jobs, kind), folder), folder


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return from_two_processes("replicas", tmp_path_factory)[0]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not SHARDS_ON_CPU:
        pytest.skip("this torch cannot shard on a CPU")
    found, folder = from_two_processes("shards", tmp_path_factory)
    return [{**each, "folder": folder} for each in found]


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@every_method
def test_two_replicas_climb_and_follow_the_whole_batch(name: str, replicas: list[Any]) -> None:
    model = net()
    trained(name, model)
    for each in replicas:
        assert_close(each["by scope"]["batch"][name], weights(model))


@every_method
def test_two_replicas_that_climb_alone_are_one_process_with_two_micro_batches(
    name: str, replicas: list[Any]
) -> None:
    model = net()
    trained(name, model, accumulate=2, scope="micro")
    for each in replicas:
        assert_close(each["by scope"]["rank"][name], weights(model))


@every_method
def test_micro_batches_of_two_replicas_are_those_of_one_process(
    name: str, replicas: list[Any]
) -> None:
    model = net()
    trained(name, model, accumulate=4, scope="micro")
    for each in replicas:
        assert_close(each["by scope"]["micro"][name], weights(model))


@every_method
def test_two_shards_climb_and_follow_the_whole_batch(name: str, shards: list[Any]) -> None:
    model = net()
    trained(name, model)
    for each in shards:
        assert_close(each["by scope"]["batch"][name], weights(model))


@every_method
def test_micro_batches_of_two_shards_are_those_of_all_processes(
    name: str, shards: list[Any]
) -> None:
    """The first halves of both shares, then the second halves."""
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    model = net()
    trained(name, model, order, accumulate=2, scope="micro")
    for each in shards:
        assert_close(each["by scope"]["micro"][name], weights(model))


@pytest.mark.parametrize("name", A_FEW)
@pytest.mark.parametrize("scope", ["batch", "rank"])
@pytest.mark.parametrize("how", WRAPPED)
def test_however_replicas_keep_their_gradients(
    how: str, scope: str, name: str, replicas: list[Any]
) -> None:
    for each in replicas:
        assert_close(each["wrapped"][how, scope, name], each["by scope"][scope][name], 1e-12)


@pytest.mark.parametrize("name", ["sam", "crsam"])
@pytest.mark.parametrize("scope", ["batch", "rank"])
def test_a_parameter_that_only_one_process_uses_moves_in_all(
    scope: str, name: str, replicas: list[Any]
) -> None:
    first, second = (each["left out"][scope, name] for each in replicas)
    assert all(torch.equal(a, b) for a, b in zip(first["all"], second["all"]))
    (seldom, never), (seldom_after, never_after) = first["moved"], first["after"]
    assert not any(torch.equal(a, b) for a, b in zip(seldom, seldom_after))
    assert all(torch.equal(a, b) for a, b in zip(never, never_after))


@every_method
def test_replicas_are_bit_identical_after_300_steps(name: str, replicas: list[Any]) -> None:
    first, second = (each["300 steps"][name] for each in replicas)
    assert len(first) > 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(t.isfinite().all() for t in first)


def test_losses_are_those_of_the_processes_that_share_a_batch(replicas: list[Any]) -> None:
    for rank, each in enumerate(replicas):
        model = net()
        trained("crsam", model, share(rank))
        assert_close(each["groups"], weights(model) * 2, 1e-12)


def test_a_functional_follows_the_whole_batch_too(replicas: list[Any]) -> None:
    for each in replicas:
        for (scope, name), found in each["functional"].items():
            assert_close(found, each["by scope"][scope][name])
        assert_close(each["fused functional"], each["by scope"]["batch"]["crsam"])


@pytest.mark.parametrize("scope", ["batch", "rank"])
def test_an_overflow_in_one_process_skips_the_step_in_all(scope: str, replicas: list[Any]) -> None:
    for each in replicas:
        found = each["overflow"][scope]
        assert all(torch.equal(a, b) for a, b in zip(found["before"], found["after"]))
        assert found["scale"] == 32.0


def test_what_would_go_wrong_silently_is_refused(replicas: list[Any]) -> None:
    for each in replicas:
        told = each["refusals"]
        assert "needs model=, the model as wrapped in DistributedDataParallel" in told["no wrapper"]
        assert "scope='micro' with several processes needs model=" in told["micro"]


@pytest.mark.filterwarnings("ignore:torch.distributed is .*unavailable or uninitialized")
@every_method
def test_saved_by_two_processes_and_gone_on_with_by_one(name: str, shards: list[Any]) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = net()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    opt = optimizer(name, model)
    states = dict(zip(("model", "opt"), get_state_dict(model, opt)))
    dcp.load(states, checkpoint_id=f"{shards[0]['folder']}/{name}", no_dist=True)
    set_state_dict(model, opt, model_state_dict=states["model"], optim_state_dict=states["opt"])
    assert opt.param_groups[0]["crsam_step"] == 3
    go_on(opt, model, slice(None), 1, range(3, 6))
    assert_close(weights(model), shards[0]["checkpoints"][name])


@pytest.mark.filterwarnings("ignore:torch.distributed is .*unavailable or uninitialized")
@pytest.mark.parametrize(("one", "other"), [("sam", "crsam"), ("crsam", "sam"), ("ssam", "sam")])
def test_a_distributed_state_of_another_method_is_refused(one: str, other: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = net()
    weights_, state = get_state_dict(model, optimizer(one, model))
    opt = optimizer(other, model)
    with pytest.raises(ValueError, match="of another method"):
        set_state_dict(model, opt, model_state_dict=weights_, optim_state_dict=state)


@pytest.mark.filterwarnings("ignore:torch.distributed is .*unavailable or uninitialized")
def test_a_distributed_state_has_at_any_time_what_is_asked_for_at_first() -> None:
    """Of SSAM a mask, which it first keeps at its tenth step, beside a base without state."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    for num_steps in (0, 3):
        model = net()
        opt = crsam.SSAM(SGD(model.parameters(), lr=0.05), model=model, period=10)
        go_on(opt, model, slice(None), 1, range(num_steps))
        state = get_optimizer_state_dict(model, opt)["state"]
        assert [list(entry) for entry in state.values()] == [["crsam_mask"]] * 4


@pytest.mark.filterwarnings("ignore:torch.distributed is .*unavailable or uninitialized")
def test_a_flattened_state_that_lost_what_a_method_remembers_is_refused() -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    for name in ("looksam", "friendlysam", "crsam"):
        model = net()
        opt = trained(name, model)
        weights_, state = get_state_dict(model, opt, options=flat)
        told = pytest.raises(ValueError, match=r"lacks crsam_.*flatten_optimizer_state_dict=True")
        with nullcontext() if name == "crsam" else told:  # which remembers nothing
            set_state_dict(model, opt, model_state_dict=weights_, optim_state_dict=state,
                           options=flat)  # fmt: skip


@every_method
def test_tensor_parallel_layers_are_whole_layers(name: str, shards: list[Any]) -> None:
    model = net(width=8)
    trained(name, model)
    for each in shards:
        assert_close(each["tensor parallel"][name], weights(model))


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_shards_computed_in_bfloat16_stay_near(name: str, shards: list[Any]) -> None:
    first, second = (each["mixed precision"][name] for each in shards)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    for a, b in zip(first, shards[0]["by scope"]["batch"][name]):
        assert (a - b).norm() < 0.05 * b.norm()


def test_weights_gathered_by_a_forward_alone_are_gathered_anew(shards: list[Any]) -> None:
    model = net()
    forward_then_center(model, slice(None))
    for each in shards:
        assert_close(each["gathered"], weights(model))


def test_what_would_go_wrong_silently_with_shards_is_refused(shards: list[Any]) -> None:
    for each in shards:
        assert "sharded weights exist only once" in each["refusals"]["shards alone"]
        assert "say model=" in each["refusals"]["no model"]
        assert "a Functional takes whole weights" in each["refusals"]["functional"]
