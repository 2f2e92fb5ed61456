"""A model that is moved from point to point, and put back where it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._states import RandomStates, Snapshot, seed_all
from crsam.errors import UserError
from crsam.landscape.directions import Direction, unwrapped


class Place:
    """Within ``with``, the model in ``eval`` mode, to be moved; after it, as it was.

    Every point is computed from a copy of the weights, so that the order in which points are
    visited, and by whom, changes nothing; in the middle are the weights themselves.

    Args:
        model: The model.
        others: Anything else that may change on the way: modules are put back as well.
        directions: The axes.

    Raises:
        UserError: If a direction does not fit the model.
    """

    def __init__(
        self, model: nn.Module, others: Sequence[Any], directions: Sequence[Direction]
    ) -> None:
        self.model = unwrapped(model)
        self.parts = [self.model, *(part for part in others if isinstance(part, nn.Module))]
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.axes = [checked(direction, named) for direction in directions]
        self.names = list(dict.fromkeys(name for axis in self.axes for name in axis))
        self.tensors = {name: named[name] for name in self.names}
        places = {t.device for t in named.values()}
        self.devices = sorted((d for d in places if d.type != "cpu"), key=str)
        self.device = next(iter(self.tensors.values())).device
        self._stack = ExitStack()

    def __enter__(self) -> Place:
        self._states, self._snapshot = RandomStates(self.devices), Snapshot(self.parts)
        self._stack.callback(self._snapshot.put_back)
        self._stack.callback(self._states.put_back)
        self._stack.enter_context(torch.inference_mode(False))
        self._stack.enter_context(torch.no_grad())
        for kind in sorted({"cpu", *(device.type for device in self.devices)}):
            self._stack.enter_context(torch.autocast(kind, enabled=False))
        self._moving = list(self.tensors.values())
        self.origin = dict(zip(self.names, tn.clone(self._moving)))
        self._stack.callback(self._back)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def _back(self) -> None:
        tn.copy_(self._moving, list(self.origin.values()))

    def settle(self) -> None:
        """Has every point start alike: buffers, modes and random numbers."""
        self._snapshot.put_back()
        self.model.eval()
        seed_all(0, self.devices)

    def go(self, coordinates: Sequence[float]) -> None:
        """Moves the model to a point, given by a number for each direction."""
        self.settle()
        self._back()
        for axis, factor in zip(self.axes, coordinates, strict=True):
            tn.add_([self.tensors[name] for name in axis], list(axis.values()), factor)

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """What `go` would make of the tensors at several points, stacked."""
        found = {name: t.expand(len(points), *t.shape).clone() for name, t in self.origin.items()}
        for axis, factors in zip(self.axes, zip(*points), strict=True):
            for name, step in axis.items():
                each = torch.tensor(factors, dtype=step.dtype, device=step.device)
                found[name] += each.view(-1, *[1] * step.ndim) * step
        return found


def checked(direction: Direction, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The direction as its tensors need it.

    Raises:
        UserError: If it names what the model does not have, in another shape, or nothing.
    """
    found: dict[str, Tensor] = {}
    for name, step in direction.items():
        if name not in named:
            raise UserError(f"a direction names {name!r}, which the model does not have")
        tensor = named[name]
        if step.shape != tensor.shape:
            shapes = f"{tuple(step.shape)}, and {tuple(tensor.shape)} in the model"
            raise UserError(f"a direction is of another shape: {name} is {shapes}")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise UserError(f"what moves must be float32 or float64, but {name} is {tensor.dtype}")
        if not step.isfinite().all():
            raise UserError(f"a direction is not finite: {name}")
        found[name] = step.detach().to(tensor)
    if not found:
        raise UserError("a direction is empty: it names nothing that moves")
    return found
