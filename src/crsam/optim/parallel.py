"""How the model is spread over processes, and what that asks of a pass and of a step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal
from weakref import WeakSet

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crsam._sharded import is_sharded
from crsam.errors import UserError
from crsam.optim.ranks import Ranks

Scope = Literal["batch", "rank", "micro"]

_rehearsed: WeakSet[nn.Module] = WeakSet()


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
        self.climbs_alone = False
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
            self.climbs_alone = bool(self._replicas)

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
        return Ranks() if self.climbs_alone else self.everyone

    @property
    def may_leave_out(self) -> bool:
        """Whether a parameter may have a gradient in some processes only."""
        return any(m.find_unused_parameters or m.static_graph for m in self._replicas)

    def to_rehearse(self) -> bool:
        """Whether replicas are yet to see their graph: a static one must be seen in a pass whose
        gradients travel, before one in which they do not. True once for each."""
        fresh = [m for m in self._replicas if m.static_graph and m not in _rehearsed]
        _rehearsed.update(fresh)
        return self.climbs_alone and bool(fresh)

    def quiet(self) -> ExitStack:
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
