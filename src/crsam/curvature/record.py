"""A loss as the list of operations that made it, those that depend on the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from crsam._tensors import Tensors

aten = torch.ops.aten


@dataclass(frozen=True)
class Slot:
    """Where an operation finds an argument, or puts a result, that depends on the weights."""

    index: int


class Operation(NamedTuple):
    """One call of torch, below autograd."""

    op: Any
    args: Any
    kwargs: Any
    outputs: list[Slot | None]
    """None for what has no derivative: indices, masks."""

    @property
    def slots(self) -> list[Slot]:
        """Those of the arguments, each once."""
        leaves = tree_leaves((self.args, self.kwargs))
        return list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Slot)))

    def __call__(self, value: Callable[[Slot], Any]) -> Sequence[Any]:
        """Its results where each argument is what `value` says; a sequence, also of one."""

        def filled(arg: Any) -> Any:
            return value(arg) if isinstance(arg, Slot) else arg

        args, kwargs = tree_map(filled, (self.args, self.kwargs))
        return listed(self.op(*args, **kwargs))


def listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple | list) else [results]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: Tensors = []
        self.operations: list[Operation] = []
        self._slots: dict[int, Slot] = {}
        for leaf in leaves:
            self.place(leaf)

    def place(self, value: Tensor) -> Slot:
        # Kept alive here, so that no later tensor gets its id.
        self.values.append(value)
        slot = self._slots[id(value)] = Slot(len(self.values) - 1)
        return slot

    def slot(self, value: Any) -> Any:
        return self._slots.get(id(value), value)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = op(*args, **kwargs)
        drawn = (
            torch.Tag.nondeterministic_seeded in op.tags and op is not aten.native_dropout.default
        )
        constant = drawn or op is aten.detach.default or not torch.is_grad_enabled()
        if constant or all(id(leaf) not in self._slots for leaf in tree_leaves((args, kwargs))):
            return results
        args, kwargs = tree_map(self.slot, (args, kwargs))
        made = listed(results)
        if op is aten.native_dropout.default:  # the same masks, whenever it is computed again
            mask = made[1].to(made[0].dtype) / (1 - args[1])
            op, args, kwargs = aten.mul.Tensor, (args[0], mask), {}
            made = made[:1]
        elif op is aten.copy.default:  # which has no derivative in torch
            op, kwargs = _copied, {}
        elif op._schema.is_mutable:  # a few that `functionalize` lets through
            op = _out_of_place(op)
        outputs = [
            self.place(r) if isinstance(r, Tensor) and r.is_floating_point() else None for r in made
        ]
        self.operations.append(Operation(op, args, kwargs, outputs))
        return results


def _copied(over: Tensor, source: Tensor) -> Tensor:
    return source.to(over.dtype).expand_as(over)


def _out_of_place(op: Any) -> Any:
    """``relu`` for ``relu_``."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"))
    return getattr(packet, op._overloadname)


def record(
    loss: Callable[[list[Tensor]], Tensor], weights: Sequence[Tensor]
) -> tuple[list[Operation], Slot]:
    """The operations from `weights` to ``loss(weights)``, and where the loss is.

    The weights have the first slots. What is under ``no_grad`` or detached is constant.
    """
    leaves = [w.detach() for w in weights]
    recorder = _Recorder(leaves)
    with torch.enable_grad(), recorder:
        result = functionalize(loss)(leaves)
    return recorder.operations, recorder.slot(result)
