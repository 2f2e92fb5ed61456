"""What a batch is: its tensors, its size, and how to tell one from several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from crsam.errors import UserError

SizeOf = Callable[[Any], int]


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
    among its members; but a list of tensors of one kind is a list of batches, if it cannot be what
    a `DataLoader` makes of pairs of them.

    Example:
        >>> x, y = torch.zeros(4, 3), torch.zeros(4)
        >>> [is_one_batch(given) for given in [(x, y), [x, y], {"x": x}, [(x, y)], [x, x[:2]]]]
        [True, True, True, False, False]

    Raises:
        UserError: If it could be either.
    """
    if isinstance(given, Tensor | Mapping) or hasattr(given, "inputs"):
        return True
    if not isinstance(given, list | tuple) or not any(isinstance(g, Tensor) for g in given):
        return False
    kinds = {(g.dtype, g.shape[1:]) if isinstance(g, Tensor) else None for g in given}
    if isinstance(given, tuple) or len(kinds) > 1:
        return True
    if len(given) > 1 and len({g.shape for g in given}) == 1:
        raise UserError(
            f"a list of {len(given)} tensors of one shape may be one batch or {len(given)}: give a "
            "tuple, (x, y), for one, and [(x,), (y,)] for several"
        )
    return False


def counted(size: int | Tensor) -> int:
    """What the user's `size_of` returned, as a number.

    Raises:
        UserError: If it is not above 0.
    """
    number: int = size.item() if isinstance(size, Tensor) else size  # type: ignore[assignment]
    if not number > 0:
        raise UserError(f"size_of must return a number above 0, got {size!r}")
    return number


def own_generators(loader: Any) -> list[torch.Generator]:
    """The generators that a loader draws its order from, where they are not torch's own."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [getattr(owner, "generator", None) for owner in (loader, sampler, inner)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
