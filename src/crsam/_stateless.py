"""Calls a model without its wrapper, and with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel


def with_tied_names(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds the other names that a model has for the same parameters and buffers.

    A tensor that two modules share has two names. A module that is used twice is named once:
    otherwise torch would replace its tensors twice and put the replacement back the second time.

    Args:
        model: The model.
        tensors: The replacements by the name of a parameter or buffer. It may leave some out.

    Returns:
        The same replacements by every name.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        >>> net[1].weight = net[0].weight
        >>> net.append(net[1])[2] is net[1]
        True
        >>> list(with_tied_names(net, dict(net.named_parameters())))
        ['0.weight', '1.weight']
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    instead = {id(own[name]): tensor for name, tensor in tensors.items()}
    return {
        f"{path}.{name}" if path else name: instead[id(tensor)]
        for path, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None and id(tensor) in instead
    }


class ModelWithLoss(nn.Module):
    """A model and a loss function as one module: `functional_call` then reaches the model."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, batch: Any) -> Any:
        return self.loss_fn(self.model, batch)


def loss_with_tensors(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    tensors: Mapping[str, Tensor],
    batch: Any,
) -> Any:
    """``loss_fn(model, batch)`` with these tensors in place of the model's own, by name."""
    module = ModelWithLoss(model, loss_fn)
    named = with_tied_names(module, {f"model.{name}": t for name, t in tensors.items()})
    return functional_call(module, named, (batch,), tie_weights=False)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without `DistributedDataParallel`.

    The wrapper's hooks would make a measurement by one rank wait for the others.
    """
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner
