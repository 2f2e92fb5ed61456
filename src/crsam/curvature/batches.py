"""The batches that a measurement goes over, as often as it needs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from crsam.curvature.checks import warn
from crsam.curvature.draws import seed_all
from crsam.errors import UserError

SizeOf = Callable[[Any], int]


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


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch in their order, however nested: tuples, dicts, objects.

    Example:
        >>> [t.shape for t in tensors_in({"x": (torch.zeros(2, 3), "name"), "y": torch.zeros(2)})]
        [torch.Size([2, 3]), torch.Size([2])]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(batch):
        for field in dataclasses.fields(batch):
            yield from tensors_in(getattr(batch, field.name))
    elif hasattr(batch, "__dict__"):
        yield from (value for value in vars(batch).values() if isinstance(value, Tensor))


def size_of(batch: Any) -> int:
    """The number of samples: the length of the first tensor.

    Example:
        >>> size_of((torch.zeros(4, 3), torch.zeros(4)))
        4

    Raises:
        UserError: If there is no tensor with a first dimension.
    """
    first = next(tensors_in(batch), None)
    if first is None or first.ndim == 0:
        why = f"a {type(batch).__name__} with no tensor" if first is None else "one number"
        raise UserError(f"the size of a batch, {why}, is not known: give size_of=lambda batch: ...")
    return len(first)


def is_one_batch(given: Any) -> bool:
    """Whether this is a batch rather than several.

    A tensor is one, as is a dict, an object with ``inputs``, and a tuple or list that has a tensor
    among its members; but a list of tensors that are alike is a list of batches.

    Example:
        >>> x, y = torch.zeros(4, 3), torch.zeros(4)
        >>> [is_one_batch(given) for given in [(x, y), [x, y], {"x": x}, [(x, y)], [x, x]]]
        [True, True, True, False, False]
    """
    if isinstance(given, Tensor | Mapping) or hasattr(given, "inputs"):
        return True
    if not isinstance(given, list | tuple) or not any(isinstance(g, Tensor) for g in given):
        return False
    alike = len({(g.dtype, g.shape[1:]) if isinstance(g, Tensor) else None for g in given}) == 1
    return not (isinstance(given, list) and alike)


def own_generators(loader: Any) -> list[torch.Generator]:
    """The generators that a loader draws its order from, where they are not torch's own."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [getattr(owner, "generator", None) for owner in (loader, sampler, inner)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
