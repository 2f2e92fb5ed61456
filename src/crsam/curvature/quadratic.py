r"""$v^\top \nabla^2 L\, v$ without $\nabla^2 L\, v$: half the work of a product."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.curvature.bend import STRAIGHT, Motion, pass_on
from crsam.curvature.draws import rademacher
from crsam.curvature.hvp import BatchHessian
from crsam.curvature.mean_loss import MeanLoss, Pass, Term, differentiable
from crsam.curvature.record import Slot, record


class Form(Protocol):
    """``v -> v · H v`` of one batch, and its gradient."""

    gradient: Tensors

    def __call__(self, vector: Tensors) -> Tensor: ...


class ByProduct:
    """Through the product: for whatever autograd can do."""

    def __init__(self, loss: Tensor, params: Sequence[nn.Parameter]) -> None:
        self.product = BatchHessian(loss, params)
        self.gradient = self.product.gradient

    def __call__(self, vector: Tensors) -> Tensor:
        return tn.dot(vector, self.product(vector))


class ByMotion:
    r"""The second derivative of the loss as the weights move along a line.

    $$v^\top \nabla^2 L\, v = \sum_f \lambda_f \cdot D^2 f[\dot x_f, \dot x_f]$$

    over all operations $f$ of the forward pass, with $\dot x_f$ the tangent of its arguments as the
    weights move along $v$ and $\lambda_f$ the derivative of the loss by its result. The λ do not
    depend on $v$: one backward pass serves all. What is left for each $v$ is one forward pass of
    tangents and their bends: three convolutions for a convolution, where a product with the Hessian
    takes six.

    Args:
        loss: The loss as a function of the weights; deterministic.
        weights: The point.
    """

    def __init__(self, loss: Callable[[list[Tensor]], Tensor], weights: Sequence[Tensor]) -> None:
        self._operations, self._at = record(loss, weights)
        values = self._replayed(weights)
        at = values[self._at.index]
        wanted = [
            slot
            for operation in self._operations
            for slot in operation.outputs
            if slot and operation.op not in STRAIGHT and values[slot.index].requires_grad
        ]
        sources = [*values[: len(weights)], *(values[slot.index] for slot in wanted)]
        grads = torch.autograd.grad(at, sources, materialize_grads=True)
        self.loss = at.item()
        self.gradient: Tensors = list(grads[: len(weights)])
        self._adjoints = dict(zip(wanted, grads[len(weights) :], strict=True))
        self._values = [value.detach() for value in values]
        self._done = self._last_uses()

    @torch.enable_grad()
    def _replayed(self, weights: Sequence[Tensor]) -> Tensors:
        """The value of every slot, with its graph."""
        values: Tensors = [w.detach().requires_grad_() for w in weights]
        for operation in self._operations:
            results = operation(lambda slot: values[slot.index])
            values.extend(r for r, to in zip(results, operation.outputs, strict=True) if to)
        return values

    def _last_uses(self) -> list[list[Slot]]:
        """By operation, the slots that none after it looks at."""
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
        motion = Motion(self._values, self._adjoints, tangents)
        total = torch.zeros((), dtype=torch.float64, device=vector[0].device)
        for operation, done in zip(self._operations, self._done, strict=True):
            passed, bend = pass_on(operation, motion)
            for slot, tangent in zip(operation.outputs, passed, strict=True):
                if slot and tangent is not None:
                    tangents[slot] = tangent
            if bend is not None:
                total += bend
            for slot in done:
                tangents.pop(slot, None)
        return tangents[self._at], total


def visit_forms(loss: MeanLoss, action: Callable[[Form, int], None]) -> Pass:
    """One pass: calls `action` on the quadratic form of every batch, and the batch's size.

    The fast way where that is seen to be right. A loss may do what cannot be recorded, or what a
    record misses: a backward pass of its own, a formula of its own for the gradient, weights from
    elsewhere. So on each batch the fast form must have the loss, the gradient and the slope along
    the gradient that autograd has, and on the first one the curvature along a random vector too.
    """
    believed = True

    def build(term: Term) -> None:
        nonlocal believed
        # One graph after the other: each dies before the next is built.
        gradient = list(
            torch.autograd.grad(differentiable(term), loss.params, materialize_grads=True)
        )
        form: Form | None = None
        if believed:
            truth = _curvature(loss, term) if term.number == 0 else None
            form = _by_motion(loss, term, gradient, truth)
        if form is None:
            believed, form = False, _by_product(loss, term)
        action(form, term.size)

    return loss.visit(build)


class _Curvature(NamedTuple):
    """Of the first batch along one vector, through the product."""

    vector: Tensors
    value: float
    rounding: float


def _curvature(loss: MeanLoss, term: Term) -> _Curvature:
    v = loss.unflat(rademacher(loss.space, "check"))
    product = _by_product(loss, term).product(v)
    eps = torch.finfo(loss.space.dtype).eps
    rounding = 100 * eps * (tn.norm(v) * tn.norm(product)).item()
    return _Curvature(v, tn.dot(v, product).item(), rounding)


def _by_product(loss: MeanLoss, term: Term) -> ByProduct:
    return ByProduct(differentiable(loss.term(term.number, term.batch)), loss.params)


def _by_motion(
    loss: MeanLoss, term: Term, gradient: Tensors, truth: _Curvature | None
) -> ByMotion | None:
    """The fast form of a batch; None unless it agrees with autograd."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user's have been seen; torch has some of its own
            form = ByMotion(lambda weights: loss.at(weights, term), loss.params)
            slope, _ = form.derivatives(gradient)
    except Exception:  # of any kind: by the product, where a mistake of the user's comes again
        return None
    far = tn.norm(tn.add_(tn.clone(form.gradient), gradient, -1)).item()
    norm = tn.norm(gradient).item()
    tolerance = math.sqrt(torch.finfo(loss.space.dtype).eps)
    close = partial(math.isclose, rel_tol=tolerance)
    same = close(form.loss, term.value) and close(slope.item(), norm**2)
    same = same and far <= tolerance * norm
    if same and truth is not None:
        found = form(truth.vector).item()
        same = abs(found - truth.value) <= tolerance * abs(truth.value) + truth.rounding
    return form if same else None
