"""A ``base.step()`` left over in a loop whose step we take: refused, where it is certain.

That is where the base is to follow the very gradient that it has followed with us, into which
nothing has been written since. (Clipping writes, so behind it this is not noticed.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

_followed: WeakKeyDictionary[Optimizer, tuple[TensorWeakRef, int]] = WeakKeyDictionary()
"""The first gradient of our last step of each base, and its version then."""


def about_to_step(base: Optimizer) -> None:
    """What follows is a step of ours."""
    _followed.pop(base, None)


def have_stepped(base: Optimizer) -> None:
    """From now on the base takes no other step along the gradient that is there."""
    hooks: Mapping[int, Any] | None = getattr(base, "_optimizer_step_pre_hooks", None)
    grad = _first_gradient(base)
    if grad is None or hooks is None:  # not every base is one of torch's in all
        return
    if _refuse not in hooks.values():  # copies and pickles of a base have no hooks
        base.register_step_pre_hook(_refuse)
    _followed[base] = TensorWeakRef(grad), grad._version


def _refuse(base: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    followed = _followed.get(base)
    if torch.compiler.is_compiling() or followed is None:
        return
    if any(each is not None and each is not base for each in (*args, *kwargs.values())):
        return  # a closure, which makes a gradient of its own
    (reference, version), grad = followed, _first_gradient(base)
    if grad is not None and reference() is grad and grad._version == version:
        raise RuntimeError(
            f"this {type(base).__name__} has been stepped by opt.step(closure) already, along the "
            "very gradient that is there: leave out its own step()"
        )


def _first_gradient(base: Optimizer) -> Tensor | None:
    found = (p.grad for group in base.param_groups for p in group["params"])
    return next((grad for grad in found if grad is not None), None)
