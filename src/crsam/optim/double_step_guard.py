"""Refuses steps of the base optimizer that the user's code takes beside ours.

Two mistakes are certain. The closure calls ``base.step()`` or ``opt.step()``: every pass would
then move the weights. Or ``base.step()`` follows ``opt.step(closure)`` with the same gradient, into
which nothing has been written since. (Clipping writes into it, so a step after clipping is not
noticed.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef


class ClosureError(RuntimeError):
    """The closure does what it must not do. The step takes back what its passes have done."""


_followed: WeakKeyDictionary[Optimizer, tuple[TensorWeakRef, int]] = WeakKeyDictionary()
"""The first gradient of our last step of each base, and its version then."""
_in_passes: set[Optimizer] = set()
"""Bases of steps whose closure is being called."""


def check_not_within(base: Optimizer, method: str) -> None:
    """Raises `ClosureError` if a closure of this very optimizer calls its step."""
    if base in _in_passes:
        raise ClosureError(
            f"the closure calls {method}.step, which calls the closure. Delete this line: the "
            "closure computes the loss, calls loss.backward() and returns the loss"
        )


@contextmanager
def in_passes(base: Optimizer) -> Iterator[None]:
    """Within, the base refuses to step."""
    hooks: Mapping[int, Any] | None = getattr(base, "_optimizer_step_pre_hooks", None)
    # Not every base has all of torch's attributes, and copies and pickles of a base have no hooks.
    if hooks is not None and _refuse not in hooks.values():
        base.register_step_pre_hook(_refuse)
    _in_passes.add(base)
    try:
        yield
    finally:
        _in_passes.discard(base)


def about_to_step(base: Optimizer) -> None:
    """What follows is a step of ours."""
    _followed.pop(base, None)


def have_stepped(base: Optimizer) -> None:
    """From now on the base takes no other step along the gradient that is there."""
    grad = _first_gradient(base)
    if grad is not None:
        _followed[base] = TensorWeakRef(grad), grad._version


def _refuse(base: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if base in _in_passes:
        raise ClosureError(
            f"the closure calls the step of {type(base).__name__}, the base optimizer. "
            "opt.step(closure) takes that step itself. Delete this line from the closure"
        )
    followed = _followed.get(base)
    if torch.compiler.is_compiling() or followed is None:
        return
    if any(each is not None and each is not base for each in (*args, *kwargs.values())):
        return  # a closure, which makes a gradient of its own
    (reference, version), grad = followed, _first_gradient(base)
    if grad is not None and reference() is grad and grad._version == version:
        raise RuntimeError(
            f"opt.step(closure) has already taken a step of this {type(base).__name__} with the "
            "same gradient: leave out its own step()"
        )


def _first_gradient(base: Optimizer) -> Tensor | None:
    found = (p.grad for group in base.param_groups for p in group["params"])
    return next((grad for grad in found if grad is not None), None)


_IS_FREED = "Trying to backward through the graph a second time"
_HAS_MOVED = "modified by an inplace operation"
_TENSOR = re.compile(r"Tensor \[([\d, ]*)\]\].* is at version (\d+); expected version (\d+)")


def uses_an_old_graph(error: RuntimeError, params: Sequence[Tensor], is_first: bool) -> bool:
    """Whether a pass failed in a graph that is older than the pass.

    A pass after the first can only fail so if the graph is older. In a first pass the cause may be
    another mistake of the user, unless torch names one of `params`, which this optimizer has moved.
    """
    text = str(error)
    if not is_first:
        return _IS_FREED in text or _HAS_MOVED in text
    found = _TENSOR.search(text)
    if _HAS_MOVED not in text or found is None:
        return False
    shape, now, then = found.groups()
    if int(now) - int(then) < 2:  # a move writes several times
        return False
    sizes = sorted(map(int, re.findall(r"\d+", shape)))  # the tensor may be a transposed weight
    return any(sorted(p.shape) == sizes and _version(p) == int(now) for p in params)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def old_graph() -> ClosureError:
    """The error to raise from torch's own."""
    return ClosureError(
        "the closure uses a tensor that needs gradients and was computed before this call of the "
        "closure. A step calls the closure several times: the first backward() frees the graph of "
        "that tensor, and the weights move between the calls. Compute the tensor inside the "
        "closure, or detach() it"
    )
