"""Products with the Hessian of a mean loss: double backward on one retained graph a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam._tensors import Tensors
from crsam.curvature.mean_loss import LossFn, MeanLoss, Pass, Term, differentiable
from crsam.errors import UserError


class BatchHessian:
    """The Hessian of one batch's loss: any number of products on the graph of one gradient.

    The graph keeps what the forward and the backward pass saw: three times the memory of a training
    step on the same batch, on a ResNet. A product costs two to three gradients.
    """

    def __init__(self, loss: Tensor, params: Sequence[nn.Parameter]) -> None:
        self.params = params
        grads = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
        self.gradient: Tensors = [g.detach() for g in grads]
        # A gradient that does not depend on the weights has no graph: its rows are 0.
        self._curved = [i for i, g in enumerate(grads) if g.requires_grad]
        self._grads = [grads[i] for i in self._curved]

    def __call__(self, vector: Tensors) -> Tensors:
        """The product with `vector`, a tensor for each parameter."""
        if not self._curved:
            return [torch.zeros_like(p) for p in self.params]
        return list(
            torch.autograd.grad(
                self._grads,
                self.params,
                [vector[i] for i in self._curved],
                retain_graph=True,
                materialize_grads=True,
            )
        )


class Hessian:
    """The Hessian of a mean loss, by its products with long vectors.

    Where there is just one batch its graph is kept from one call to the next.
    """

    def __init__(self, loss: MeanLoss) -> None:
        self.loss = loss
        self._only: BatchHessian | None = None

    def visit(self, action: Callable[[BatchHessian, int], None]) -> Pass:
        """One pass: calls `action` on the Hessian of every batch, and the batch's size."""

        def build(term: Term) -> None:
            action(BatchHessian(differentiable(term), self.loss.params), term.size)

        return self.loss.visit(build)

    def products(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """``H v`` for each of `vectors`: one pass over the data for all of them."""
        if self._only is not None:
            return [finite(self._product(self._only, v)) for v in vectors]
        totals = [torch.zeros_like(v) for v in vectors]

        def add(hessian: BatchHessian, size: int) -> None:
            for total, v in zip(totals, vectors, strict=True):
                total.add_(self._product(hessian, v), alpha=size)
            if len(self.loss.batches) == 1:
                self._only = hessian

        num_samples = self.visit(add).num_samples
        return [finite(total.div_(num_samples)) for total in totals]

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.products([vector])[0]

    def _product(self, hessian: BatchHessian, vector: Tensor) -> Tensor:
        return self.loss.flat(hessian(self.loss.unflat(vector)))


def finite(values: Tensor) -> Tensor:
    """`values`, of products.

    Raises:
        UserError: If one is infinite or NaN, which the loss was not.
    """
    if not values.isfinite().all():
        raise UserError("the loss is finite but its second derivative is not: a root or norm at 0?")
    return values


def hessian_vector_product(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    vector: Sequence[Tensor],
    *,
    size_of: SizeOf | None = None,
) -> Tensors:
    r"""$\nabla^2 L(w)\,v$ of the mean loss over all batches.

    One gradient with its graph and one product for each batch.

    Args:
        model: The model, in the mode it is to be measured in; left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        vector: A tensor for each parameter that requires a gradient, of its shape.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.

    Returns:
        The product, a tensor for each parameter that requires a gradient.

    Example:
        >>> from crsam import curvature
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> curvature.hessian_vector_product(
        ...     model, lambda model, x: model(x).square().mean(), [x], [torch.ones(1, 2)]
        ... )
        [tensor([[1., 9.]])]
    """
    with MeanLoss(model, loss_fn, batches, size_of) as loss:
        shapes = [tuple(p.shape) for p in loss.params]
        if [tuple(v.shape) for v in vector] != shapes:
            raise UserError(
                f"vector must have a tensor for each parameter that requires a gradient, of shapes "
                f"{shapes}; got {[tuple(v.shape) for v in vector]}"
            )
        product = Hessian(loss) @ loss.flat(vector).to(loss.device)
        return tn.clone(loss.unflat(product))
