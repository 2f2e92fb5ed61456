"""The mean loss over all samples of some batches, as one function of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crsam import _tensors as tn
from crsam._batches import SizeOf, counted, size_of
from crsam._stateless import Together, called
from crsam._states import Snapshot, seed_all, seed_of
from crsam._tensors import Tensors
from crsam.curvature.batches import Batches
from crsam.curvature.checks import warn
from crsam.curvature.draws import Space
from crsam.curvature.scene import measuring
from crsam.errors import UserError

LossFn = Callable[[Any, Any], Tensor]


class Term(NamedTuple):
    """What one batch gives to the mean."""

    loss: Tensor
    """Its mean loss, 0-d, with its graph."""
    losses: Tensor
    """What `loss_fn` returned: the mean again, or the loss of each sample."""
    value: float
    """The loss as a number."""
    size: int
    """Its weight: the number of its samples."""
    number: int
    """Of the batch, from 0."""
    batch: Any


class Pass(NamedTuple):
    """What one pass over the data saw."""

    loss: float
    """The mean over all samples."""
    num_samples: int


class Evaluation(NamedTuple):
    """The mean loss at some point, and its gradient."""

    loss: float
    grads: Tensors
    num_samples: int = 0
    batch_norm: float = math.nan
    """The plain mean of the norms of the batches' gradients: every batch counts once."""


class MeanGradient:
    """Adds up the gradients of the batches of one pass."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._total: Tensors = [torch.zeros_like(p) for p in params]
        self._norms: Tensors = []

    def add(self, grads: Sequence[Tensor], size: int) -> None:
        """The gradient of a batch of `size` samples."""
        tn.add_(self._total, grads, size)
        self._norms.append(tn.norm(grads))

    def evaluation(self, seen: Pass) -> Evaluation:
        """The mean over the samples of the pass; `add` must not be called after it."""
        grads = tn.scale_(self._total, 1 / seen.num_samples)
        batch_norm = torch.stack(self._norms).double().mean().item()
        return Evaluation(seen.loss, grads, seen.num_samples, batch_norm)


class MeanLoss:
    r"""$L(w) = \sum_b n_b L_b(w) / \sum_b n_b$, the same function in every pass.

    Within ``with``, passes over the batches can be made: every batch sees the random numbers that
    it saw in the first pass (dropout draws the same masks) and the buffers that the model came
    with. After it the model and the random states are as they were, also after an exception.

    Args:
        model: The model; only parameters that require a gradient count.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, batches: Any, size_of: SizeOf | None = None
    ) -> None:
        # Its hooks would make a measurement by one rank wait for the others.
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.loss_fn = loss_fn
        self.size_of = size_of
        self.names, self.params = checked_params(self.model)
        self.device = self.params[0].device
        num_weights = sum(p.numel() for p in self.params)
        self.space = Space(num_weights, tn.wide_dtype(self.params), self.device)
        self.devices = sorted({p.device for p in self.params if p.device.type != "cpu"}, key=str)
        self.batches = Batches(batches, self.devices)
        self._stack = ExitStack()
        self._snapshot: Snapshot
        self._moved = False
        self._has_each = False
        """Whether `loss_fn` returned several: then one is that of a single sample, not a mean."""
        self._first: Pass | None = None
        self._warned = False

    def __enter__(self) -> MeanLoss:
        parts = [part for part in (self.model, self.loss_fn) if isinstance(part, nn.Module)]
        self._snapshot = self._stack.enter_context(measuring(parts, self.devices))
        for generator in self.batches.generators:
            self._stack.callback(generator.set_state, generator.get_state())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def visit(self, action: Callable[[Term], None]) -> Pass:
        """One pass: calls `action` on every batch's term.

        The graph of a term dies with the call, before the next is built: `action` must not keep it.
        """
        total, count = 0.0, 0
        for index, batch in enumerate(self.batches):
            value, size = self._visit(index, batch, action)
            total, count = total + size * value, count + size
        if count == 0:
            raise UserError("batches is empty: there is nothing to measure")
        seen = Pass(total / count, count)
        if not self._moved:
            self._check_same(seen)
        return seen

    def _visit(self, index: int, batch: Any, action: Callable[[Term], None]) -> tuple[float, int]:
        term = self.term(index, batch)
        action(term)
        return term.value, term.size

    def term(self, index: int, batch: Any) -> Term:
        """Forward: the loss of the batch with this index."""
        self._begin(index)
        losses = self.loss_fn(self.model, batch)
        if not isinstance(losses, Tensor):
            raise UserError(f"loss_fn must return a tensor, got {type(losses).__name__}")
        loss = losses.mean() if losses.is_floating_point() else losses.to(self.space.dtype).mean()
        value = loss.item()
        if not math.isfinite(value):
            where = "at weights moved this far" if self._moved else "at the weights"
            raise UserError(f"loss_fn returned {value} {where}, on batch {index}")
        return Term(loss, losses, value, self._size(batch, losses), index, batch)

    def at(self, weights: list[Tensor], term: Term) -> Tensor:
        """The loss of a term's batch as a function of the weights, which need not be the model's.

        It is the same function in every call: the same random numbers, the same buffers.
        """
        self._begin(term.number)
        named = {f"model.{name}": w for name, w in zip(self.names, weights, strict=True)}
        return called(Together(self.model, self.loss_fn), named, (term.batch,)).mean()

    def _begin(self, index: int) -> None:
        self._snapshot.put_back()
        seed_all(seed_of("batch", index), self.devices)

    def _size(self, batch: Any, losses: Tensor) -> int:
        if self.size_of is not None:
            return counted(self.size_of(batch))
        self._has_each |= losses.numel() > 1
        return losses.numel() if self._has_each and losses.ndim else size_of(batch)

    def _check_same(self, seen: Pass) -> None:
        first = self._first = self._first or seen
        differ = abs(seen.loss - first.loss) > 1e-3 * abs(first.loss) + 1e-6
        if differ and not self._warned:
            self._warned = True
            warn(
                f"the loss of the same weights was {first.loss:.6g} and then {seen.loss:.6g}: it "
                "draws random numbers that are not torch's, Python's or numpy's, or its batches "
                "differ from pass to pass; the result means little"
            )

    def value(self) -> float:
        """The mean loss: one forward pass over the data."""
        with torch.no_grad():
            return self.visit(lambda term: None).loss

    def gradient(self) -> Evaluation:
        """The mean loss and its gradient: one forward and one backward pass over the data."""
        total = MeanGradient(self.params)

        def add(term: Term) -> None:
            loss = differentiable(term)
            total.add(torch.autograd.grad(loss, self.params, materialize_grads=True), term.size)

        with torch.enable_grad():
            seen = self.visit(add)
        return total.evaluation(seen)

    @contextmanager
    def moved(self, offset: Sequence[Tensor]) -> Iterator[None]:
        """Has the weights at ``w + offset``, and puts them back bit for bit."""
        weights: Tensors = list(self.params)
        with torch.no_grad():
            saved = tn.clone(weights)
        self._moved = True
        try:
            with torch.no_grad():
                tn.add_(weights, offset)
            yield
        finally:
            with torch.no_grad():
                tn.copy_(weights, saved)
            self._moved = False

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """One long vector of a list with a tensor for each parameter."""
        return torch.cat([t.detach().reshape(-1).to(self.space.dtype) for t in tensors])

    def unflat(self, vector: Tensor) -> Tensors:
        """The tensors for each parameter that a long vector is made of, as views."""
        parts = torch.split(vector, [p.numel() for p in self.params])
        return [part.view(p.shape).to(p.dtype) for part, p in zip(parts, self.params, strict=True)]


def differentiable(term: Term) -> Tensor:
    """The loss of a term.

    Raises:
        UserError: If it has no gradient.
    """
    if not term.loss.requires_grad:
        raise UserError("the loss does not depend on any parameter that requires a gradient")
    return term.loss


def checked_params(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """The names of the parameters that require a gradient, and the parameters.

    Raises:
        UserError: If there are none, or if one is narrower than float32.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise UserError("the model has no parameter that requires a gradient")
    for name, p in named.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise UserError(f"parameters must be float32 or float64, but {name} is {p.dtype}")
    return list(named), list(named.values())
