"""Sums of gradients over batches, and products with the Hessian of one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.errors import UserError


class Pass(NamedTuple):
    """The result of one pass over the data."""

    loss: float
    """The mean loss over all samples."""
    num_samples: int


class Gradient(NamedTuple):
    """The mean loss at some weights, and its gradient."""

    loss: float
    grads: Tensors
    num_samples: int = 0
    batch_norm: float = math.nan
    """The plain mean of the norms of the batches' gradients: every batch counts once."""


class GradientSum:
    """Adds up the gradients of the batches of one pass."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._total: Tensors = [torch.zeros_like(p) for p in params]
        self._norms: Tensors = []

    def add(self, grads: Sequence[Tensor], size: int) -> None:
        """Adds the gradient of a batch of `size` samples."""
        tn.add_(self._total, grads, size)
        self._norms.append(tn.norm(grads))

    def mean(self, seen: Pass) -> Gradient:
        """The mean over the samples of the pass. It uses the sum up."""
        grads = tn.scale_(self._total, 1 / seen.num_samples)
        batch_norm = torch.stack(self._norms).double().mean().item()
        return Gradient(seen.loss, grads, seen.num_samples, batch_norm)


class BatchHessian:
    """The Hessian of one batch's loss: any number of products on one retained graph.

    The graph keeps the values of the forward and of the backward pass. On a ResNet that is three
    times the memory of a training step on the same batch. A product costs two to three gradients.
    """

    def __init__(self, loss: Tensor, params: Sequence[Tensor]) -> None:
        self.params = params
        grads = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
        self.gradient: Tensors = [g.detach() for g in grads]
        # A gradient that does not depend on the weights has no graph. Its rows are 0.
        self._curved = [i for i, g in enumerate(grads) if g.requires_grad]
        self._grads = [grads[i] for i in self._curved]

    def __call__(self, vector: Tensors) -> Tensors:
        """The product with `vector`, which has a tensor for each parameter."""
        if not self._curved:
            return [torch.zeros_like(p) for p in self.params]
        vectors = [vector[i] for i in self._curved]
        return list(
            torch.autograd.grad(
                self._grads, self.params, vectors, retain_graph=True, materialize_grads=True
            )
        )


def finite(values: Tensor) -> Tensor:
    """Second derivatives that are all finite.

    Raises:
        UserError: If one is infinite or NaN, although the loss was finite.
    """
    if not values.isfinite().all():
        raise UserError("the loss is finite but its second derivative is not: a root or norm at 0?")
    return values
