"""Records the operations that compute a loss, as far as they depend on the weights."""

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
    """The number of a recorded tensor: an argument or a result that depends on the weights."""

    index: int


class Operation(NamedTuple):
    """One call of a torch operator, below autograd."""

    op: Any
    args: Any
    kwargs: Any
    outputs: list[Slot | None]
    """None for results without a derivative, such as indices and masks."""

    @property
    def slots(self) -> list[Slot]:
        """The slots among the arguments, each once."""
        leaves = tree_leaves((self.args, self.kwargs))
        return list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Slot)))

    def run(self, value_of: Callable[[Any], Any]) -> Sequence[Any]:
        """Calls the operator again.

        Args:
            value_of: Gives the value of a slot, and returns every other argument as it is.

        Returns:
            A list of results, also if there is only one.
        """
        args, kwargs = tree_map(value_of, (self.args, self.kwargs))
        results = self.op(*args, **kwargs)
        return results if isinstance(results, tuple | list) else [results]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._values: Tensors = []
        self.slots: dict[int, Slot] = {}
        for leaf in leaves:
            self.add_slot(leaf)

    def add_slot(self, value: Tensor) -> Slot:
        self._values.append(value)  # keeps it alive, so that no later tensor gets its id
        slot = self.slots[id(value)] = Slot(len(self._values) - 1)
        return slot

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = op(*args, **kwargs)
        is_random = (
            torch.Tag.nondeterministic_seeded in op.tags and op is not aten.native_dropout.default
        )
        is_constant = is_random or op is aten.detach.default or not torch.is_grad_enabled()
        if is_constant or all(id(leaf) not in self.slots for leaf in tree_leaves((args, kwargs))):
            return results
        args, kwargs = tree_map(lambda a: self.slots.get(id(a), a), (args, kwargs))
        made = results if isinstance(results, tuple | list) else [results]
        if op is aten.native_dropout.default:  # stores the mask, so that each replay uses the same
            mask = made[1].to(made[0].dtype) / (1 - args[1])
            op, args, kwargs = aten.mul.Tensor, (args[0], mask), {}
            made = made[:1]
        elif op is aten.copy.default:  # torch has no derivative of it
            op, kwargs = _copied, {}
        elif op._schema.is_mutable:  # `functionalize` leaves a few in-place operations
            op = _out_of_place(op)
        outputs = [
            self.add_slot(r) if isinstance(r, Tensor) and r.is_floating_point() else None
            for r in made
        ]
        self.operations.append(Operation(op, args, kwargs, outputs))
        return results


def _copied(over: Tensor, source: Tensor) -> Tensor:
    return source.to(over.dtype).expand_as(over)


def _out_of_place(op: Any) -> Any:
    """The operator that returns a new tensor, such as ``relu`` for ``relu_``."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"))
    return getattr(packet, op._overloadname)


def record(
    loss: Callable[[list[Tensor]], Tensor], weights: Sequence[Tensor]
) -> tuple[list[Operation], Slot]:
    """Records the operations from `weights` to ``loss(weights)``.

    The weights have the first slots. Values that are computed under ``no_grad`` or detached are
    constants.

    Returns:
        The operations and the slot of the loss.
    """
    leaves = [w.detach() for w in weights]
    recorder = _Recorder(leaves)
    with torch.enable_grad(), recorder:
        result = functionalize(loss)(leaves)
    return recorder.operations, recorder.slots[id(result)]
