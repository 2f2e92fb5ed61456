"""The processes that share a batch, and how the model is spread over them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crsam._tensors import Tensors, is_sharded
from crsam.errors import UserError

BUCKET = 2**25
"""Bytes that travel in one message, at most, unless a tensor is larger."""


class Ranks:
    """The ranks of a process group, seen from one of them.

    Every method is a message that all of them must send; alone, none is sent.

    Args:
        group: A ``torch.distributed`` group; None: this process alone.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def mean(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The means over all ranks, in one message for all of them."""
        if self.size == 1:
            return values
        together = torch.stack(values)
        dist.all_reduce(together, group=self.group)
        return tuple(together / self.size)

    def mean_(self, tensors: Tensors) -> Tensors:
        """The same for whole tensors, in place and in few messages."""
        return self._reduce(tensors, 1 / self.size)

    def sum_(self, tensors: Tensors) -> Tensors:
        return self._reduce(tensors, 1.0)

    def _reduce(self, tensors: Tensors, times: float) -> Tensors:
        if self.size == 1:
            return tensors
        for bucket in self._buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket])
            dist.all_reduce(flat, group=self.group)
            flat *= times
            _scatter(flat, bucket)
        return tensors

    def broadcast_from_first(self, tensors: Tensors) -> Tensors:
        """The first rank's tensors, written over the others'."""
        for bucket in self._buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket])
            dist.broadcast(flat, group=self.group, src=dist.get_global_rank(self.group, 0))
            _scatter(flat, bucket)
        return tensors

    def gather(self, values: Tensor) -> Tensors:
        """Each rank's vector, of whatever length."""
        if self.size == 1:
            return [values]
        lengths = self.counts(len(values), values.device)
        padded = values.new_zeros(max(lengths))
        padded[: len(values)] = values
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded, group=self.group)
        return [each[:length] for each, length in zip(every, lengths)]

    def counts(self, mine: int, device: torch.device) -> list[int]:
        """Each rank's whole number; waits for the device."""
        if self.size == 1:
            return [mine]
        every = torch.zeros(self.size, dtype=torch.long, device=device)
        every[self.rank] = mine
        dist.all_reduce(every, group=self.group)
        return every.tolist()

    def _buckets(self, tensors: Sequence[Tensor]) -> list[Tensors]:
        """The tensors in runs of one dtype and device; none where nobody is to be told."""
        buckets: list[Tensors] = []
        filled, kind = 0, None
        for t in tensors if self.size > 1 else ():
            filled += t.nbytes
            if kind != (t.dtype, t.device) or filled > BUCKET:
                buckets.append([])
                filled, kind = t.nbytes, (t.dtype, t.device)
            buckets[-1].append(t)
        return buckets


def _scatter(flat: Tensor, tensors: Tensors) -> None:
    for t, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors])):
        t.copy_(part.view(t.shape))


Scope = Literal["batch", "rank", "micro"]

_has_run: WeakSet[nn.Module] = WeakSet()


class Parallel:
    """The model's wrappers and the processes that share a batch.

    Args:
        model: As the optimizer was given it.
        params: The parameters that are trained.
        scope: Of the perturbation.
        group: The processes that share a batch; None: as the model says, or all there are.

    Raises:
        UserError: For a way to be spread under which the step would go wrong.
    """

    def __init__(
        self, model: nn.Module | None, params: Sequence[Tensor], scope: Scope, group: Any
    ) -> None:
        self.everyone = Ranks()
        self.gradients_are_local = False
        """Whether the gradients that a pass leaves are this process's own."""
        self.is_sharded = False
        self._replicas: list[DistributedDataParallel] = []
        self._sharded: list[Any] = []
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.is_sharded = any(map(is_sharded, params))
        if model is not None:
            modules = list(model.modules())
            self._replicas = [m for m in modules if isinstance(m, DistributedDataParallel)]
            self._sharded = [m for m in modules if isinstance(m, _class_of("FSDPModule"))]
            if any(isinstance(m, _class_of("FullyShardedDataParallel")) for m in modules):
                raise UserError(
                    "FullyShardedDataParallel keeps flat pieces of weights, whose norms are not "
                    "those of the whole: use torch.distributed.fsdp.fully_shard"
                )
        elif self.is_sharded:
            raise UserError("parameters are DTensors: say model=, so that moved weights are seen")
        self.everyone = Ranks(group or self._found_group(params))
        if scope != "batch" and self.everyone.size > 1:
            self._check_scope(scope)
            self.gradients_are_local = bool(self._replicas)

    def _found_group(self, params: Sequence[Tensor]) -> Any:
        if self._replicas:
            return self._replicas[0].process_group
        if not self.is_sharded:
            return dist.group.WORLD
        meshes = {p.device_mesh for p in params if is_sharded(p)}  # type: ignore[attr-defined]
        mesh = meshes.pop()
        if meshes or mesh.ndim > 1:
            raise UserError(
                "parameters are spread over a mesh of several dimensions: say which processes "
                "share a batch, group=…"
            )
        if self._sharded:
            return mesh.get_group()
        if mesh.size() < dist.get_world_size():
            raise UserError(
                "parameters are spread over some of the processes: say which processes share a "
                "batch, group=…"
            )
        return None  # tensor parallel: all have the same batch

    def _check_scope(self, scope: Scope) -> None:
        if scope == "rank" and self.is_sharded:
            raise UserError(
                "scope='rank' moves each process's weights elsewhere, and sharded weights exist "
                "only once: use scope='batch' or 'micro'"
            )
        if not (self._replicas or self._sharded):
            raise UserError(
                f"scope={scope!r} with several processes needs model=, the model as wrapped in "
                "DistributedDataParallel"
            )

    @property
    def of_a_pass(self) -> Ranks:
        """The processes whose losses and samples a pass's gradient is of."""
        return Ranks() if self.gradients_are_local else self.everyone

    @property
    def may_leave_out(self) -> bool:
        """Whether a parameter may have a gradient in some processes only."""
        return any(m.find_unused_parameters or m.static_graph for m in self._replicas)

    def needs_dry_run(self) -> bool:
        """Whether replicas are yet to see their graph: a static one must be seen in a pass whose
        gradients travel, before one in which they do not. True once for each."""
        fresh = [m for m in self._replicas if m.static_graph and m not in _has_run]
        _has_run.update(fresh)
        return self.gradients_are_local and bool(fresh)

    def no_sync(self) -> ExitStack:
        """Within, no gradient travels between replicas."""
        stack = ExitStack()
        for replica in self._replicas:
            stack.enter_context(replica.no_sync())
        return stack

    def forget_gathered(self) -> None:
        """Has sharded weights gathered anew: a forward may have left them as they were."""
        for module in self._sharded:
            module.reshard()


def _class_of(name: str) -> type | tuple[()]:
    module = sys.modules.get("torch.distributed.fsdp")  # who has wrapped a model has imported it
    return getattr(module, name, ())
