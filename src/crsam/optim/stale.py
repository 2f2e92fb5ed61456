"""Finds parameters that the model no longer has, and that therefore get no gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor, nn

_CURE = (
    "model.load_state_dict(..., assign=True) replaces the parameters of a model: build the "
    "optimizer after it, or load with assign=False"
)


def no_gradient(params: Sequence[Tensor], model: nn.Module | None) -> RuntimeError:
    """Returns the error for a pass that left no gradient on any parameter of the optimizer."""
    own = {id(p) for p in params}
    if model is not None and not any(id(p) in own for p in model.parameters()):
        return replaced("there is no gradient, and no parameter of this optimizer is in `model`")
    return RuntimeError(
        "the closure left no gradient on any parameter of this optimizer: it must compute the "
        "loss, call loss.backward() and return the loss. If it does, the model's parameters may "
        f"have been replaced after the optimizer was built. {_CURE}"
    )


def replaced(what: str) -> RuntimeError:
    """Returns the error for parameters that are in the optimizer, but not in the model."""
    return RuntimeError(f"{what}. {_CURE}")


def warn_of_replaced(params: Sequence[Tensor], model: nn.Module) -> None:
    """Warns if some parameters have no gradient because the model has others in their place.

    A parameter was certainly replaced if it is not in the model, and the model has another one of
    its shape that got a gradient and that this optimizer does not train.
    """
    own, used = {id(p) for p in params}, list(model.parameters())
    there = {id(p) for p in used}
    new = {p.shape for p in used if p.grad is not None and id(p) not in own}
    gone = [p for p in params if p.grad is None and id(p) not in there and p.shape in new]
    if gone:
        warnings.warn(
            f"{len(gone)} of {len(params)} parameters of this optimizer are not in `model`, and "
            f"get no gradient. {_CURE}",
            stacklevel=2,
        )
