"""Weights on either side of where they are, in the dtype that a pass computes in."""

from __future__ import annotations

import torch

from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors

Dtypes = tuple[torch.dtype, ...]


def cast(tensors: Tensors, dtypes: Dtypes) -> Tensors:
    """The tensors, each of them itself where there is nothing to cast."""
    others = [i for i, dtype in enumerate(dtypes) if tensors[i].dtype != dtype]
    if not others:
        return tensors
    found = dict(zip(others, _as([tensors[i] for i in others], tuple(dtypes[i] for i in others))))
    return [found.get(i, tensor) for i, tensor in enumerate(tensors)]


@tn.fused
def _as(tensors: Tensors, dtypes: Dtypes) -> Tensors:
    if torch.compiler.is_compiling():
        # Changes nothing, but of an operation on the whole list the compiler makes one kernel.
        tensors = tn.scale_(tensors, 1.0)
    return _narrowed(tensors, dtypes)


def _narrowed(tensors: Tensors, dtypes: Dtypes) -> Tensors:
    return [t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True)]


@tn.fused
def moved(weights: Tensors, direction: Tensors, scale: Scale, dtypes: Dtypes) -> Tensors:
    """``w + scale·direction``; nothing is used up."""
    return _narrowed(tn.add_(tn.scale_(tn.copied(direction), scale), weights), dtypes)
