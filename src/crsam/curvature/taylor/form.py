r"""The quadratic form $v^\top \nabla^2 L\, v$ of a batch's loss, and a check that it is right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.curvature.derivatives import BatchHessian
from crsam.curvature.mean_loss import BatchLoss, MeanLoss
from crsam.curvature.random_vectors import rademacher
from crsam.curvature.taylor.rules import RULES, WITHOUT_SECOND_ORDER, Line, generic_rule
from crsam.curvature.taylor.tape import Operation, Slot, record


class QuadraticForm(Protocol):
    """``v -> v · H v`` of one batch, and the gradient of its loss."""

    gradient: Tensors

    def __call__(self, vector: Tensors) -> Tensor: ...


class ProductForm:
    """``v · (H v)`` by autograd. It works for every loss and costs two to three gradients."""

    def __init__(self, loss: Tensor, params: Sequence[Tensor]) -> None:
        self.hessian = BatchHessian(loss, params)
        self.gradient = self.hessian.gradient

    def __call__(self, vector: Tensors) -> Tensor:
        return tn.dot(vector, self.hessian(vector))


class TaylorForm:
    r"""The second derivative of the loss along a line of the weights.

    $$v^\top \nabla^2 L\, v = \sum_f \lambda_f \cdot D^2 f[\dot x_f, \dot x_f]$$

    The sum is over all operations $f$ of the forward pass. $\dot x_f$ is the tangent of the
    arguments of $f$ as the weights move along $v$. $\lambda_f$ is the derivative of the loss by the
    result of $f$. It does not depend on $v$, so one backward pass serves all vectors. Each vector
    then needs one forward pass of tangents and second-order terms: three convolutions for each
    convolution, where a product with the Hessian takes six.

    Args:
        operations: The operations that compute the loss.
        result: The slot of the loss.
        weights: The point. The weights have the first slots.
    """

    def __init__(
        self, operations: Sequence[Operation], result: Slot, weights: Sequence[Tensor]
    ) -> None:
        self._operations, self._result = operations, result
        values = self._replayed(weights)
        at = values[self._result.index]
        wanted = [
            slot
            for operation in self._operations
            for slot in operation.outputs
            if slot
            and operation.op not in WITHOUT_SECOND_ORDER
            and values[slot.index].requires_grad
        ]
        sources = [*values[: len(weights)], *(values[slot.index] for slot in wanted)]
        grads = torch.autograd.grad(at, sources, materialize_grads=True)
        self.loss = at.item()
        self.gradient: Tensors = list(grads[: len(weights)])
        self._adjoints = dict(zip(wanted, grads[len(weights) :], strict=True))
        self._values = [value.detach() for value in values]
        self._last_used = self._slots_by_last_use()

    @torch.enable_grad()
    def _replayed(self, weights: Sequence[Tensor]) -> Tensors:
        """The value of every slot, with its graph."""
        values: Tensors = [w.detach().requires_grad_() for w in weights]
        for operation in self._operations:
            results = operation.run(lambda a: values[a.index] if isinstance(a, Slot) else a)
            values.extend(r for r, to in zip(results, operation.outputs, strict=True) if to)
        return values

    def _slots_by_last_use(self) -> list[list[Slot]]:
        """For each operation, the slots that no later operation uses."""
        last = {slot: i for i, operation in enumerate(self._operations) for slot in operation.slots}
        done: list[list[Slot]] = [[] for _ in self._operations]
        for slot, i in last.items():
            done[i].append(slot)
        return done

    def __call__(self, vector: Tensors) -> Tensor:
        return self.derivatives(vector)[1]

    @torch.no_grad()
    def derivatives(self, vector: Tensors) -> tuple[Tensor, Tensor]:
        """The first and the second derivative of the loss along `vector`."""
        tangents = {Slot(i): v for i, v in enumerate(vector)}
        line = Line(self._values, self._adjoints, tangents)
        total = torch.zeros((), dtype=torch.float64, device=vector[0].device)
        for operation, done in zip(self._operations, self._last_used, strict=True):
            rule = RULES.get(operation.op, generic_rule)
            found, second_order = rule(operation, line)
            for slot, tangent in zip(operation.outputs, found, strict=True):
                if slot and tangent is not None:
                    tangents[slot] = tangent
            if second_order is not None:
                total += second_order
            for slot in done:  # frees the memory
                tangents.pop(slot, None)
        return tangents[self._result], total


def quadratic_forms(loss: MeanLoss) -> Callable[[BatchLoss], QuadraticForm]:
    """Returns a function that gives the quadratic form of each batch, in one pass over the data.

    A `TaylorForm` where that is seen to be right, and a `ProductForm` elsewhere. Some losses cannot
    be recorded, or not completely: those with a backward pass of their own, with a formula of
    their own for the gradient, or with weights that they take from somewhere else. Therefore, on
    each batch, the Taylor form must have the loss, the gradient and the slope along the gradient
    that autograd has. On the first batch it must also have the curvature along a random vector.
    After the first batch that fails, all batches get a `ProductForm`.
    """
    trusted = True

    def form_of(batch_loss: BatchLoss) -> QuadraticForm:
        nonlocal trusted
        # One graph after the other: each is freed before the next is built.
        loss_with_graph = batch_loss.differentiable()
        gradient = list(torch.autograd.grad(loss_with_graph, loss.params, materialize_grads=True))
        if trusted:
            expected = _curvature(loss, batch_loss) if batch_loss.number == 0 else None
            form = _checked_taylor_form(loss, batch_loss, gradient, expected)
            if form is not None:
                return form
        trusted = False
        return _product_form(loss, batch_loss)

    return form_of


class _Curvature(NamedTuple):
    """The curvature of a batch's loss along one vector, by a product with the Hessian."""

    vector: Tensors
    value: float
    rounding: float


def _curvature(loss: MeanLoss, batch_loss: BatchLoss) -> _Curvature:
    v = loss.unflatten(rademacher(loss.space, "check"))
    product = _product_form(loss, batch_loss).hessian(v)
    eps = torch.finfo(loss.space.dtype).eps
    rounding = 100 * eps * (tn.norm(v) * tn.norm(product)).item()
    return _Curvature(v, tn.dot(v, product).item(), rounding)


def _product_form(loss: MeanLoss, batch_loss: BatchLoss) -> ProductForm:
    again = loss.batch_loss(batch_loss.number, batch_loss.batch)
    return ProductForm(again.differentiable(), loss.params)


def _checked_taylor_form(
    loss: MeanLoss, batch_loss: BatchLoss, gradient: Tensors, expected: _Curvature | None
) -> TaylorForm | None:
    """The Taylor form of a batch, or None unless it agrees with autograd."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user has seen those of the loss; torch adds some
            tape = record(lambda weights: loss.batch_loss_at(weights, batch_loss), loss.params)
            form = TaylorForm(*tape, loss.params)
            slope, _ = form.derivatives(gradient)
    except Exception:  # of any kind: a mistake of the user's comes again with the product form
        return None
    difference = tn.norm(tn.add_(tn.clone(form.gradient), gradient, -1)).item()
    norm = tn.norm(gradient).item()
    tolerance = math.sqrt(torch.finfo(loss.space.dtype).eps)
    close = partial(math.isclose, rel_tol=tolerance)
    same = close(form.loss, batch_loss.value) and close(slope.item(), norm**2)
    same = same and difference <= tolerance * norm
    if same and expected is not None:
        found = form(expected.vector).item()
        same = abs(found - expected.value) <= tolerance * abs(expected.value) + expected.rounding
    return form if same else None
