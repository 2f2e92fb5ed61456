"""The mean loss at points of a line or a plane through the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam._stateless import unwrapped
from crsam._states import Snapshot
from crsam.curvature.mean_loss import LossFn, MeanLoss
from crsam.errors import UserError
from crsam.landscape.directions import Direction

BatchNorm = Literal["running", "recomputed"]


class Points:
    """The mean loss as a function of coordinates: ``L(w + x·d₁ + y·d₂)``.

    Use it in a ``with`` block. Every point is computed from a copy of the weights, and starts from
    the same buffers and random numbers. Neither the order of the points nor the process that
    computes them therefore changes the result. The model is in ``eval`` mode inside the block and
    as it was after it.

    Args:
        model: The model.
        loss_fn: See `crsam.landscape.surface`.
        batches: A list, a loader or a single batch. It is read once.
        directions: The directions d₁, d₂.
        size_of: The number of samples of a batch.
        batch_norm: See `crsam.landscape.surface`.

    Raises:
        UserError: If a direction does not fit the model.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Any,
        directions: Sequence[Direction],
        size_of: SizeOf | None,
        batch_norm: BatchNorm,
    ) -> None:
        self.model, self.batch_norm = unwrapped(model), batch_norm
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.directions = [checked(direction, named) for direction in directions]
        names = dict.fromkeys(name for direction in self.directions for name in direction)
        self.tensors = {name: named[name] for name in names}
        self.loss = MeanLoss(model, loss_fn, batches, size_of, moving=self.tensors)
        self._stack = ExitStack()

    def __enter__(self) -> Points:
        with ExitStack() as stack:
            stack.callback(Snapshot([self.model]).put_back)
            self.model.eval()
            stack.enter_context(self.loss)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @torch.no_grad()
    def at(self, coordinates: Sequence[float]) -> list[Tensor]:
        """The mean loss at a point, and the accuracy if `loss_fn` returns what is right."""
        self.loss.reset(0)
        with self.loss.weights_put_back():
            for direction, factor in zip(self.directions, coordinates, strict=True):
                tn.add_(
                    [self.tensors[name] for name in direction], list(direction.values()), factor
                )
            if self.batch_norm == "recomputed":
                self._recompute_statistics()
            return self.loss.means()

    @torch.no_grad()
    def at_many(self, points: Sequence[Sequence[float]]) -> list[Tensor]:
        """The same at several points at once, with an entry for each point."""
        self.loss.reset(0)
        found = {name: t.expand(len(points), *t.shape).clone() for name, t in self.tensors.items()}
        for direction, factors in zip(self.directions, zip(*points), strict=True):
            for name, step in direction.items():
                each = torch.tensor(factors, dtype=step.dtype, device=step.device)
                found[name] += each.view(-1, *[1] * step.ndim) * step
        return self.loss.means(found)

    def _recompute_statistics(self) -> None:
        """One pass in which batch norm takes the means of the batches' statistics."""
        with averaging_statistics(self.model) as weigh:
            for batch in self.loss.batches.given:
                weigh(self.loss.batches.weight(batch, None))
                self.loss.loss_fn(self.model, batch)


def checked(direction: Direction, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The direction in the dtypes and on the devices of the model's tensors.

    Raises:
        UserError: If it names a tensor that the model does not have, has another shape, is not
            finite, or is empty.
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


@contextmanager
def averaging_statistics(model: nn.Module) -> Iterator[Callable[[int], None]]:
    """Makes batch norm average the statistics of the batches, weighted by their size.

    Yields:
        A function to call with the size of each batch before its forward pass.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [layer.momentum for layer in layers]
    num_samples = 0

    def weigh(size: int) -> None:
        nonlocal num_samples
        num_samples += size
        for layer in layers:
            layer.momentum = size / num_samples

    try:
        for layer in layers:
            layer.train()
        yield weigh
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
            layer.eval()
