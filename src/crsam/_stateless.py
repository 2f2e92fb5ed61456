"""A model called with other tensors in the place of its own, which stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def everywhere(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of parameters and buffers, under all names that those have.

    A tensor that two modules share has two. A module that is there twice is named once: torch would
    otherwise replace its tensors twice, and put back what it took out the second time.

    Args:
        model: The model.
        tensors: What to put in the place of which parameter or buffer; not all need be there.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        >>> net[1].weight = net[0].weight
        >>> net.append(net[1])[2] is net[1]
        True
        >>> list(everywhere(net, dict(net.named_parameters())))
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


def called(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    named: dict[str, Any] | None = None,
) -> Any:
    """``model(*args, **named)`` with these tensors in the place of its own."""
    return functional_call(model, everywhere(model, tensors), args, named, tie_weights=False)


class Together(nn.Module):
    """Model and loss as one module, so that `called` reaches the model within it."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, batch: Any) -> Any:
        return self.loss_fn(self.model, batch)
