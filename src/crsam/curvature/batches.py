"""The batches that a measurement goes over, as often as it needs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from crsam._batches import is_one_batch, own_generators, tensors_in
from crsam._states import seed_all
from crsam.curvature.checks import warn
from crsam.errors import UserError


class Batches:
    """Something that can be gone over again and again, giving the same samples every time.

    Every pass starts from the same random numbers, and with it a loader's order and what it
    augments at random. Where that fails (workers that live on, a dataset with a generator of its
    own), the passes are not about the same function, and a warning says so.

    Args:
        given: A list, a loader, or a single batch.
        devices: Those besides the CPU whose random numbers count.
    """

    def __init__(self, given: Any, devices: Sequence[torch.device] = ()) -> None:
        if isinstance(given, Iterator):
            raise UserError(
                f"batches is a {type(given).__name__}, which can be gone over only once: give a "
                "list or a DataLoader"
            )
        self.given: Iterable[Any] = [given] if is_one_batch(given) else given
        if isinstance(self.given, str) or not hasattr(self.given, "__iter__"):
            raise UserError(
                f"batches must be a list of batches or a DataLoader, got {type(given).__name__}"
            )
        self.devices = devices
        self.generators = own_generators(self.given)
        """Seeded in every pass; whoever goes over the batches must put their states back."""
        self._warned = False
        self._first: Contents | None = None

    def __len__(self) -> int:
        """How many there are; 0 if nobody knows."""
        try:
            return len(self.given)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def __iter__(self) -> Iterator[Any]:
        """One pass. Whatever is drawn between two batches must be so in every pass."""
        held = isinstance(self.given, list | tuple)
        contents = Contents()
        seed_all(0, self.devices)
        for generator in self.generators:
            generator.manual_seed(0)
        for batch in self.given:
            if not held:
                contents.add(batch)
            yield batch
        if self._first is None:
            self._first = contents
        elif not contents.same_as(self._first) and not self._warned:
            self._warned = True
            warn(
                "two passes over the batches saw different samples: a loader that augments, drops "
                "or picks at random makes a measurement of several passes meaningless"
            )


class Contents:
    """A sum over all samples by which two passes over the data can be told apart.

    It does not depend on the order of the samples, nor on how they are split into batches.
    """

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.scale: Tensor | float = 0.0

    def add(self, batch: Any) -> None:
        for place, tensor in enumerate(tensors_in(batch)):
            if tensor.ndim == 0 or tensor.layout != torch.strided or tensor.is_complex():
                continue
            summed = tensor.detach().flatten(1) if tensor.ndim > 1 else tensor.detach()[:, None]
            columns = summed.sum(0, dtype=torch.float64)
            places = torch.arange(len(columns), dtype=torch.float64, device=columns.device)
            terms = columns * torch.cos(places + place)  # tells a flipped image from the image
            self.total = self.total + terms.sum()
            self.scale = self.scale + terms.abs().sum()

    def same_as(self, other: Contents) -> bool:
        difference = abs(float(self.total) - float(other.total))
        return difference <= 1e-8 * max(float(self.scale), float(other.scale))
