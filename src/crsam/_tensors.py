"""Algebra on lists of tensors, by ``torch._foreach_*``.

A list stands for one long vector (all parameters, or all their gradients). Functions whose name
ends in ``_`` work in place on their first argument and return it. Nothing here waits for the
device: every number that depends on the data stays a 0-d tensor. Of tensors that are spread over
processes, each works on its own part; norms and products are those of the whole.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
Tensors = list[Tensor]
Scale = float | Tensor | list[Any]
"""A factor for a list of tensors: one for all, or one for each (all numbers or all 0-d tensors)."""


_WIDE = {torch.float32, torch.float64}


def wide_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Returns the dtype in which sums over `tensors` are kept: never narrower than float32."""
    kinds = {t.dtype for t in tensors}
    if kinds <= _WIDE and len(kinds) == 1:
        return kinds.pop()
    return reduce(torch.promote_types, kinds, torch.float32)


_fusing = False


@contextmanager
def fusing() -> Iterator[None]:
    """Within, functions marked `fused` are compiled: one walk through memory instead of many."""
    global _fusing
    before, _fusing = _fusing, True
    try:
        yield
    finally:
        _fusing = before


def is_fusing() -> bool:
    return _fusing


def fused(function: Callable[P, T]) -> Callable[P, T]:
    """Marks a pure function of lists of tensors that is worth a kernel of its own.

    It must use what functions ending in ``_`` return, and not what they were given: compiled, they
    work out of place. Of long lists, it must do the same with each entry and give back a list.
    """

    @functools.cache
    def compiled(kind: Hashable) -> Callable[..., Any]:
        # At the first use: to ask for it imports the compiler, which takes seconds. For each kind
        # from a copy: the compiler gives up on code that comes in too many kinds.
        code = function.__code__.replace()
        inside = function.__globals__, function.__name__, function.__defaults__
        return torch.compile(FunctionType(code, *inside, function.__closure__), dynamic=False)

    @functools.wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _fusing:
            return function(*args, **kwargs)
        assert not kwargs
        found: list[Any] = [compiled(_kind_of(part))(*part) for part in _cut(args)]
        return found[0] if len(found) == 1 else cast("T", list(chain.from_iterable(found)))

    return either


LONGEST = 36
"""Of a list that is compiled in one go. The compiler looks at all pairs for what to fuse: on a CPU
1.5 s for 62 tensors, 6.1 for 150. Three blocks of a transformer: equal ones are compiled once."""


def _cut(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments, with lists cut into pieces."""
    length = max((len(a) for a in args if isinstance(a, list | tuple)), default=0)
    for start in range(0, max(length, 1), LONGEST):
        yield tuple(a[start : start + LONGEST] if isinstance(a, list | tuple) else a for a in args)


def _kind_of(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_kind_of, value))
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return float if isinstance(value, float) else value  # of which there might be no end


def clone(tensors: Sequence[Tensor]) -> Tensors:
    return copy_([torch.empty_like(t) for t in tensors], tensors)


def copied(tensors: Tensors) -> Tensors:
    """A clone to work on in place; compiled, where nothing is in place, the tensors themselves."""
    return tensors if torch.compiler.is_compiling() else clone(tensors)


def as_wide_as(others: Sequence[Tensor], tensors: Tensors) -> Tensors:
    """Returns `tensors`, each in the dtype of its counterpart."""
    if all(t.dtype is other.dtype for t, other in zip(tensors, others, strict=True)):
        return tensors
    return [t.to(other.dtype) for t, other in zip(tensors, others, strict=True)]


def copy_(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensors:
    out = list(tensors)
    if out:  # torch refuses empty lists
        torch._foreach_copy_(local(out), local(others))
    return out


def scale_(tensors: Tensors, by: Scale) -> Tensors:
    if torch.compiler.is_compiling():
        return list(torch._foreach_mul(tensors, by))
    torch._foreach_mul_(local(tensors), by)
    return tensors


def add_(tensors: Tensors, others: Sequence[Tensor], times: float = 1.0) -> Tensors:
    if torch.compiler.is_compiling():
        return list(torch._foreach_add(tensors, list(others), alpha=times))
    torch._foreach_add_(local(tensors), local(others), alpha=times)
    return tensors


def multiply_(tensors: Tensors, others: Sequence[Tensor]) -> Tensors:
    """Element by element."""
    torch._foreach_mul_(local(tensors), local(others))
    return tensors


def mix_(a: Tensors, b: Tensors, weight: Scale) -> Tensors:
    """``(1 − weight)·a + weight·b``, as ``a + weight·(b − a)``; `b` is used up."""
    return add_(a, scale_(add_(b, a, -1.0), weight))


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each tensor, as one vector."""
    wide = wide_dtype(tensors)
    own = torch.stack(_own_norms(local(tensors), wide))
    if not any_sharded(tensors):
        return own
    # In float64, where the square of no float32 overflows or vanishes.
    return sum_over_parts(own.double().square(), tensors).sqrt().to(wide)


def _own_norms(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    kinds = {t.dtype: None for t in tensors}
    if len(kinds) == 1:
        return list(torch._foreach_norm(tensors, 2, dtype=dtype))
    found: dict[int, Tensor] = {}
    for alike in kinds:  # of mixed dtypes torch would take one by one
        places = [i for i, t in enumerate(tensors) if t.dtype == alike]
        lengths = torch._foreach_norm([tensors[i] for i in places], 2, dtype=dtype)
        found |= dict(zip(places, lengths))
    return [found[i] for i in range(len(tensors))]


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of the whole."""
    return torch.linalg.vector_norm(norms(tensors))


def clip_(tensors: Tensors, max_norm: float) -> Tensor:
    """Scales the whole down to a norm of `max_norm`, if it is above; returns the factor."""
    length = norm(tensors)
    factor = torch.where(length > max_norm, max_norm / length, 1.0)
    scale_(tensors, factor)
    return factor


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    wide = wide_dtype(a)
    products = [(x.to(wide) * y).sum() for x, y in zip(local(a), local(b), strict=True)]
    return sum_over_parts(torch.stack(products), a).sum()


def safe_reciprocal(x: Tensor) -> Tensor:
    """``1/x``, and 0 where that is not finite: no direction is no move, rather than NaN."""
    return torch.nan_to_num(1.0 / x, nan=0.0, posinf=0.0, neginf=0.0)


def top_mask(scores: Sequence[Tensor], count: int) -> Tensors:
    """Boolean masks of the `count` largest entries over all of `scores` together.

    Every process sees all scores, so that equals are told apart alike, however they are spread.
    """
    flat = torch.cat([full(s).reshape(-1) for s in scores])
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask.index_fill_(0, flat.topk(count, sorted=False).indices, True)
    sizes = [s.numel() for s in scores]
    whole = (m.view(s.shape) for m, s in zip(torch.split(mask, sizes), scores, strict=True))
    return [laid_out_as(s, m) for m, s in zip(whole, scores)]


def unscale_(tensors: Sequence[Tensor], inverse: Tensor, overflow: Tensor) -> None:
    """Multiplies by `inverse` and sets `overflow` to 1 if any entry is not finite: one walk."""
    alike: dict[torch.dtype, Tensors] = {}
    for tensor in local(tensors):
        alike.setdefault(tensor.dtype, []).append(tensor)
    for some in alike.values():
        torch._amp_foreach_non_finite_check_and_unscale_(some, overflow, inverse)


def _never() -> bool:
    return False


may_be_sharded: Callable[[], bool] = (
    torch.distributed.is_initialized if torch.distributed.is_available() else _never
)
"""Whether this process works with others at all."""


def is_sharded(tensor: Tensor) -> bool:
    """Returns whether other processes may hold parts of a tensor."""
    return may_be_sharded() and (kind := _sharded_kind()) is not None and isinstance(tensor, kind)


def any_sharded(tensors: Sequence[Tensor]) -> bool:
    """Returns whether other processes may hold parts of one of the tensors."""
    kind = _sharded_kind()
    return kind is not None and any(isinstance(t, kind) for t in tensors)


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns this process's part of each tensor: a view that can be written to."""
    if not may_be_sharded() or (kind := _sharded_kind()) is None:
        return tensors if isinstance(tensors, list) else list(tensors)
    return [t.to_local() if isinstance(t, kind) else t for t in tensors]


def _sharded_kind() -> Any:
    """Returns the class of sharded tensors. None: nobody can have made one in this process."""
    if not may_be_sharded():
        return None
    module = sys.modules.get("torch.distributed.tensor")  # whoever makes one has imported it
    return None if module is None else module.DTensor


def full(tensor: Tensor) -> Tensor:
    """The whole tensor, on every process."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """The whole `tensor`, which every process has, cut as `like` is."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    if not is_sharded(tensor):
        whole = [Replicate()] * mesh.ndim
        tensor = DTensor.from_local(tensor, mesh, whole, run_check=False)
    return tensor.redistribute(placements=placements)  # type: ignore[attr-defined]


def spread_along(like: Tensor, tensor: Tensor) -> Tensor:
    """`tensor`, which is `like` with some dimensions shrunk to 1, cut along the others as it is."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import Replicate

    placements = [
        Replicate() if placement.is_shard() and tensor.shape[placement.dim] == 1 else placement
        for placement in like.placements  # type: ignore[attr-defined]
    ]
    return tensor.redistribute(placements=placements)  # type: ignore[attr-defined]


def sum_over_parts(values: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """One value a tensor, each summed over the processes that hold parts of that tensor.

    One message for each dimension of a mesh, whatever the number of tensors.
    """
    where: dict[tuple[Any, int], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if is_sharded(tensor):
            for dim, placement in enumerate(tensor.placements):  # type: ignore[attr-defined]
                assert not placement.is_partial(), "a sum that was never taken"
                if not placement.is_replicate():
                    where.setdefault((tensor.device_mesh, dim), []).append(i)  # type: ignore[attr-defined]
    for (mesh, dim), positions in where.items():
        of_all = len(positions) == len(tensors)
        some = values.contiguous() if of_all else values[positions]
        torch.distributed.all_reduce(some, group=mesh.get_group(dim))
        if of_all:
            values = some
        else:
            values[positions] = some
    return values
