"""The batches of a measurement: the same samples in every pass, weighted by their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from crsam._batches import SizeOf, counted, is_one_batch, own_generators, size_of, tensors_in
from crsam._states import seed_all
from crsam.curvature.checks import warn
from crsam.errors import UserError


class Batches:
    """Batches that can be read again and again, with the same samples in every pass.

    Every pass starts from the same random numbers. A loader therefore gives the same order and the
    same random augmentation every time. This fails for workers that stay alive between passes and
    for a dataset with a generator of its own. A warning says when two passes differ.

    Args:
        given: A list, a loader, or a single batch.
        size_of: The number of samples of a batch. By default this is the number of losses, or else
            the length of the first tensor.
        devices: The devices besides the CPU whose random numbers are seeded.
        once: Whether one pass is enough, so that an iterator may be given.

    Raises:
        UserError: If `given` is something else, or an iterator and `once` is false.
    """

    def __init__(
        self,
        given: Any,
        size_of: SizeOf | None = None,
        devices: Sequence[torch.device] = (),
        once: bool = False,
    ) -> None:
        if isinstance(given, Iterator) and not once:
            raise UserError(
                f"batches is a {type(given).__name__}, which can be gone over only once: give a "
                "list or a DataLoader"
            )
        self.given: Iterable[Any] = [given] if is_one_batch(given) else given
        if isinstance(self.given, str) or not hasattr(self.given, "__iter__"):
            raise UserError(
                f"batches must be a list of batches or a DataLoader, got {type(given).__name__}"
            )
        self.size_of, self.devices = size_of, devices
        self.generators = own_generators(self.given)
        """They are seeded in every pass. The caller must put their states back."""
        self._has_sample_losses = False
        self._warned = False
        self._first: Checksum | None = None

    def __len__(self) -> int:
        """The number of batches, or 0 if it is unknown."""
        try:
            return len(self.given)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def __iter__(self) -> Iterator[Any]:
        """One pass. Code between two batches must draw the same random numbers in every pass."""
        in_memory = isinstance(self.given, list | tuple)
        checksum = Checksum()
        self._seed()
        for batch in self.given:
            if not in_memory:
                checksum.add(batch)
            yield batch
        if self._first is None:
            self._first = checksum
        elif not checksum.same_as(self._first) and not self._warned:
            self._warned = True
            warn(
                "two passes over the batches saw different samples: a loader that augments, drops "
                "or picks at random makes a measurement of several passes meaningless"
            )

    def load(self) -> list[Any]:
        """Reads all batches into memory, where later passes find them.

        Raises:
            UserError: If there are none.
        """
        self._seed()
        self.given = batches = list(self.given)
        if not batches:
            raise UserError("batches is empty: there is nothing to evaluate")
        return batches

    def _seed(self) -> None:
        seed_all(0, self.devices)
        for generator in self.generators:
            generator.manual_seed(0)

    def weight(self, batch: Any, losses: Tensor | None) -> int:
        """The weight of a batch in the mean: the number of its samples.

        Args:
            batch: The batch.
            losses: What `loss_fn` returned for it, if it was called: a mean or one loss a sample.
        """
        if self.size_of is not None:
            return counted(self.size_of(batch))
        if losses is None or not losses.ndim:
            return size_of(batch)
        # After a batch with several losses, a single one is that of one sample and not a mean.
        self._has_sample_losses |= losses.numel() > 1
        return losses.numel() if self._has_sample_losses else size_of(batch)


class Checksum:
    """A sum over all samples that tells two passes over the data apart.

    It depends neither on the order of the samples nor on how they are split into batches.
    """

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.scale: Tensor | float = 0.0

    def add(self, batch: Any) -> None:
        for position, tensor in enumerate(tensors_in(batch)):
            if tensor.ndim == 0 or tensor.layout != torch.strided or tensor.is_complex():
                continue
            rows = tensor.detach().flatten(1) if tensor.ndim > 1 else tensor.detach()[:, None]
            columns = rows.sum(0, dtype=torch.float64)
            indices = torch.arange(len(columns), dtype=torch.float64, device=columns.device)
            # The cosine gives each column a factor: a flipped image has another checksum.
            terms = columns * torch.cos(indices + position)
            self.total = self.total + terms.sum()
            self.scale = self.scale + terms.abs().sum()

    def same_as(self, other: Checksum) -> bool:
        difference = abs(float(self.total) - float(other.total))
        return difference <= 1e-8 * max(float(self.scale), float(other.scale))
