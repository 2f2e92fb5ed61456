"""A ``base.step()`` left over in a loop whose step we take: refused, where it is certain.

That is where the gradient is the one that we have followed. Since then it may have been written to
once, as clipping does; to zero it and to add another one is to write to it twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

MARK = "_crsam_followed"
"""On a gradient that a step of ours has followed: its version then."""


def refuse_leftover_steps(base: Optimizer) -> None:
    """From now on the base takes no step along a gradient that `mark_followed` has seen."""
    if _refuse not in base._optimizer_step_pre_hooks.values():
        base.register_step_pre_hook(_refuse)


def mark_followed(base: Optimizer) -> None:
    """The gradient that the base has just followed."""
    grad = _first_gradient(base)
    if grad is not None:
        setattr(grad, MARK, grad._version)


def _refuse(base: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    grad = _first_gradient(base)
    followed = getattr(grad, MARK, None)
    if grad is not None and followed is not None and grad._version <= followed + 1:
        raise RuntimeError(
            f"this {type(base).__name__} has been stepped by opt.step(closure) already, along the "
            "gradient that is there: leave out its own step() (clipping is max_norm=… of the "
            "method)"
        )


def _first_gradient(base: Optimizer) -> Tensor | None:
    found = (p.grad for group in base.param_groups for p in group["params"])
    return next((grad for grad in found if grad is not None), None)
