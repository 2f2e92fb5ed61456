"""Mean loss and accuracy over the batches, at one point or at several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from crsam._batches import SizeOf, counted, is_one_batch, own_generators, size_of
from crsam._stateless import called
from crsam._states import RandomStates, seed_all
from crsam.errors import UserError
from crsam.landscape.place import Place

LossFn = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]
BatchNorm = Literal["running", "recomputed"]


class Mean:
    """What is evaluated at every point.

    Args:
        loss_fn: See `surface`.
        batches: A list, a loader or a single batch; gone over once.
        size_of: The number of samples of a batch.
        batch_norm: See `surface`.
    """

    def __init__(
        self, loss_fn: LossFn, batches: Any, size_of: SizeOf | None, batch_norm: BatchNorm
    ) -> None:
        self.loss_fn, self.size_of, self.batch_norm = loss_fn, size_of, batch_norm
        self.batches = held(batches)
        self._has_each = False
        """Whether `loss_fn` returned several: then one is that of a single sample, not a mean."""

    def at(self, place: Place, point: Sequence[float]) -> list[Tensor]:
        """The mean loss, and the accuracy where there is one."""
        place.go(point)
        if self.batch_norm == "recomputed":
            with refreshed(place.model) as weigh:
                for batch in self.batches:
                    weigh(self._size(batch, None))
                    self.loss_fn(place.model, batch)
        return self._over_batches(lambda batch: self._sums(place.model, batch))

    def at_many(self, place: Place, points: Sequence[Sequence[float]]) -> list[Tensor]:
        """The same at several points in one go, each a column."""
        place.settle()
        tensors = place.stacked(points)

        def each(tensors: dict[str, Tensor], batch: Any) -> tuple[Tensor, ...]:
            def moved(*inputs: Any, **named: Any) -> Any:
                return called(place.model, tensors, inputs, named)

            return tuple(self._sums(moved, batch))

        at_all = vmap(each, in_dims=(0, None), randomness="same")
        return self._over_batches(lambda batch: list(at_all(tensors, batch)))

    def _over_batches(self, sums_of: Callable[[Any], list[Tensor]]) -> list[Tensor]:
        total = sums_of(self.batches[0])
        for batch in self.batches[1:]:
            total = [a + b for a, b in zip(total, sums_of(batch), strict=True)]
        *sums, count = total
        return [scale * s / count for scale, s in zip((1, 100), sums)]  # accuracy in per cent

    def _sums(self, model: Any, batch: Any) -> list[Tensor]:
        """Over a batch, in float64: losses, how many are right, how many there are."""
        found = self.loss_fn(model, batch)
        parts = list(found) if isinstance(found, tuple) else [found]
        if len(parts) > 2 or not all(isinstance(part, Tensor) for part in parts):
            raise UserError(
                "loss_fn must return a tensor, the loss, or a pair of them, the loss and what is "
                f"right; got {type(found).__name__}"
            )
        size = self._size(batch, parts[0])
        count = torch.full((), size, dtype=torch.float64, device=parts[0].device)
        return [*(part.double().mean() * size for part in parts), count]

    def _size(self, batch: Any, losses: Tensor | None) -> int:
        if self.size_of is not None:
            return counted(self.size_of(batch))
        if losses is None or not losses.ndim:
            return size_of(batch)
        self._has_each |= losses.numel() > 1
        return losses.numel() if self._has_each else size_of(batch)


def held(batches: Any) -> list[Any]:
    """All batches, in memory, in an order that is the same every time; random states are left as
    they were.

    Raises:
        UserError: If there are none.
    """
    if is_one_batch(batches):
        return [batches]
    if isinstance(batches, str) or not hasattr(batches, "__iter__"):
        raise UserError(
            f"batches must be a list of batches or a DataLoader, got {type(batches).__name__}"
        )
    everyone = RandomStates([])
    states = [(generator, generator.get_state()) for generator in own_generators(batches)]
    try:
        seed_all(0, [])
        for generator, _ in states:
            generator.manual_seed(0)
        found = list(batches)
    finally:
        everyone.put_back()
        for generator, state in states:
            generator.set_state(state)
    if not found:
        raise UserError("batches is empty: there is nothing to evaluate")
    return found


@contextmanager
def refreshed(model: nn.Module) -> Iterator[Callable[[int], None]]:
    """Within, batch norm takes its statistics anew; yields what tells it each batch's size.

    They are the means of the batches' own statistics, weighted by size.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [layer.momentum for layer in layers]
    seen = 0

    def weigh(size: int) -> None:
        nonlocal seen
        seen += size
        for layer in layers:
            layer.momentum = size / seen

    try:
        for layer in layers:
            layer.train()
        yield weigh
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
            layer.eval()
