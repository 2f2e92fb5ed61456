"""The evaluator of a mean loss: its value and its derivatives, at the weights and near them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from crsam import _tensors as tn
from crsam._batches import SizeOf
from crsam._stateless import loss_with_tensors, unwrapped
from crsam._states import RandomStates, Snapshot, seed_all, seed_of
from crsam._tensors import Tensors
from crsam.curvature.batches import Batches
from crsam.curvature.checks import warn
from crsam.curvature.derivatives import BatchHessian, Gradient, GradientSum, Pass, finite
from crsam.curvature.exact_autograd import exact_autograd
from crsam.curvature.random_vectors import VectorSpace
from crsam.errors import UserError

LossFn = Callable[[Any, Any], Any]


class BatchLoss(NamedTuple):
    """The loss of one batch, after its forward pass."""

    loss: Tensor
    """The mean loss of the batch, 0-d, with its graph."""
    losses: Tensor
    """What `loss_fn` returned: the mean loss, or the loss of each sample."""
    value: float
    """The mean loss as a number."""
    size: int
    """The weight of the batch: the number of its samples."""
    number: int
    """The number of the batch, from 0."""
    batch: Any

    def differentiable(self) -> Tensor:
        """The mean loss.

        Raises:
            UserError: If it has no gradient.
        """
        if not self.loss.requires_grad:
            raise UserError("the loss does not depend on any parameter that requires a gradient")
        return self.loss


class MeanLoss:
    r"""$L(w) = \sum_b n_b L_b(w) / \sum_b n_b$, the same function of the weights in every pass.

    Use it in a ``with`` block. In every pass each batch sees the same random numbers (dropout draws
    the same masks) and the buffers that the model came with. After the block the weights, buffers,
    modes and random states are as they were before it, also after an exception.

    Args:
        model: The model.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample.
        batches: A list of batches, a loader, or one batch.
        size_of: The number of samples of a batch. By default this is the number of losses, or else
            the length of the first tensor.
        moving: The tensors of the model that are the weights, by name. By default these are the
            parameters that require a gradient. With tensors of the caller's choice there are only
            values, no derivatives: torch keeps the caller's precision and kernels, and the batches
            are read into memory.

    Raises:
        UserError: If the weights have no derivatives, or `batches` cannot be read.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Any,
        size_of: SizeOf | None = None,
        moving: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.loss_fn = unwrapped(model), loss_fn
        self._values_only = moving is not None
        named = checked_params(self.model) if moving is None else moving
        self.names, self.params = list(named), list(named.values())
        self.device = self.params[0].device
        num_weights = sum(p.numel() for p in self.params)
        self.space = VectorSpace(num_weights, tn.wide_dtype(self.params), self.device)
        places = {t.device for t in (*self.model.parameters(), *self.model.buffers())}
        self.devices = sorted((d for d in places if d.type != "cpu"), key=str)
        self.batches = Batches(batches, size_of, self.devices, once=self._values_only)
        self._stack = ExitStack()
        self._snapshot: Snapshot
        self._weights: Tensors = []
        self._is_perturbed = False
        self._first: Pass | None = None
        self._warned = False
        self._only_hessian: BatchHessian | None = None

    def __enter__(self) -> MeanLoss:
        parts = [part for part in (self.model, self.loss_fn) if isinstance(part, nn.Module)]
        with ExitStack() as stack:
            self._snapshot = Snapshot(parts)
            stack.callback(self._snapshot.put_back)
            stack.callback(RandomStates(self.devices).put_back)
            for generator in self.batches.generators:
                stack.callback(generator.set_state, generator.get_state())
            stack.enter_context(torch.inference_mode(False))
            for kind in sorted({"cpu", *(device.type for device in self.devices)}):
                stack.enter_context(torch.autocast(kind, enabled=False))
            if self._values_only:
                self.batches.load()
            else:
                stack.enter_context(exact_autograd(parts))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._only_hessian = None
        self._stack.close()

    def reset(self, seed: int) -> None:
        """Puts modes and buffers back and seeds all random numbers."""
        self._snapshot.put_back()
        seed_all(seed, self.devices)

    # At the weights as they are: all samples.

    def for_each_batch(self, action: Callable[[BatchLoss], None]) -> Pass:
        """Calls `action` with the loss of every batch, in one pass over the data.

        `action` must not keep the loss: its graph is freed before that of the next batch is built.
        """
        total, count = 0.0, 0
        for index, batch in enumerate(self.batches):
            batch_loss = self.batch_loss(index, batch)
            action(batch_loss)
            total += batch_loss.size * batch_loss.value
            count += batch_loss.size
            del batch_loss
        if count == 0:
            raise UserError("batches is empty: there is nothing to measure")
        seen = Pass(total / count, count)
        if not self._is_perturbed:
            self._warn_if_changed(seen)
        return seen

    def batch_loss(self, index: int, batch: Any) -> BatchLoss:
        """The forward pass of the batch with this index."""
        self.reset(seed_of("batch", index))
        losses = self.loss_fn(self.model, batch)
        if not isinstance(losses, Tensor):
            raise UserError(f"loss_fn must return a tensor, got {type(losses).__name__}")
        loss = losses.mean() if losses.is_floating_point() else losses.to(self.space.dtype).mean()
        value = loss.item()
        if not math.isfinite(value):
            where = "at weights moved this far" if self._is_perturbed else "at the weights"
            raise UserError(f"loss_fn returned {value} {where}, on batch {index}")
        return BatchLoss(loss, losses, value, self.batches.weight(batch, losses), index, batch)

    def _warn_if_changed(self, seen: Pass) -> None:
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
            return self.for_each_batch(lambda batch_loss: None).loss

    def gradient(self) -> Gradient:
        """The mean loss and its gradient: one forward and one backward pass over the data."""
        total = GradientSum(self.params)

        def add(batch_loss: BatchLoss) -> None:
            loss = batch_loss.differentiable()
            grads = torch.autograd.grad(loss, self.params, materialize_grads=True)
            total.add(grads, batch_loss.size)

        with torch.enable_grad():
            seen = self.for_each_batch(add)
        return total.mean(seen)

    def hessian_products(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """``H v`` for each of the long `vectors`, in one pass over the data.

        The graph of a single batch is kept from one call to the next.
        """
        if self._only_hessian is not None:
            return [finite(self._product(self._only_hessian, v)) for v in vectors]
        totals = [torch.zeros_like(v) for v in vectors]

        def add(batch_loss: BatchLoss) -> None:
            hessian = BatchHessian(batch_loss.differentiable(), self.params)
            for total, v in zip(totals, vectors, strict=True):
                total.add_(self._product(hessian, v), alpha=batch_loss.size)
            if len(self.batches) == 1:
                self._only_hessian = hessian

        num_samples = self.for_each_batch(add).num_samples
        return [finite(total.div_(num_samples)) for total in totals]

    def hessian_product(self, vector: Tensor) -> Tensor:
        """``H v`` for one long vector."""
        return self.hessian_products([vector])[0]

    def _product(self, hessian: BatchHessian, vector: Tensor) -> Tensor:
        return self.flatten(hessian(self.unflatten(vector)))

    @torch.no_grad()
    def means(self, points: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """The mean loss, and the accuracy in per cent if `loss_fn` returns what is right.

        Nothing is checked and the device is never waited for: the results are float64 tensors.

        Args:
            points: Tensors by name, with a row for each point. If given, all points are evaluated
                at once, and each result has an entry for each point.
        """
        sums: Callable[[Any], Sequence[Tensor]] = self._sums
        if points is not None:
            sums = partial(vmap(self._sums_with, in_dims=(0, None), randomness="same"), points)
        first, *others = self.batches.given
        total = sums(first)
        for batch in others:
            total = [a + b for a, b in zip(total, sums(batch), strict=True)]
        *found, count = total
        return [scale * s / count for scale, s in zip((1, 100), found)]

    def _sums(self, batch: Any) -> list[Tensor]:
        return self._sums_of(self.loss_fn(self.model, batch), batch)

    def _sums_with(self, tensors: Mapping[str, Tensor], batch: Any) -> tuple[Tensor, ...]:
        found = loss_with_tensors(self.model, self.loss_fn, tensors, batch)
        return tuple(self._sums_of(found, batch))

    def _sums_of(self, found: Any, batch: Any) -> list[Tensor]:
        """Sums over a batch: of the losses, of what is right, and of the samples."""
        parts = list(found) if isinstance(found, tuple) else [found]
        if len(parts) > 2 or not all(isinstance(part, Tensor) for part in parts):
            raise UserError(
                "loss_fn must return a tensor, the loss, or a pair of them, the loss and what is "
                f"right; got {type(found).__name__}"
            )
        size = self.batches.weight(batch, parts[0])
        count = torch.full((), size, dtype=torch.float64, device=parts[0].device)
        return [*(part.double().mean() * size for part in parts), count]

    # At other weights.

    @contextmanager
    def weights_put_back(self) -> Iterator[None]:
        """Lets the caller change the weights, and puts them back bit for bit."""
        self._snapshot.put_weights_back()
        with torch.no_grad():
            self._weights = self._weights or tn.clone(self.params)
        self._is_perturbed = True
        try:
            yield
        finally:
            with torch.no_grad():
                tn.copy_(self.params, self._weights)
            self._snapshot.update_weights()
            self._is_perturbed = False

    @contextmanager
    def perturbed_weights(self, offset: Sequence[Tensor]) -> Iterator[None]:
        """Evaluates at ``w + offset`` inside the ``with`` block."""
        with self.weights_put_back():
            with torch.no_grad():
                tn.add_(self.params, offset)
            self._snapshot.update_weights()
            yield

    def batch_loss_at(self, weights: Sequence[Tensor], batch_loss: BatchLoss) -> Tensor:
        """The same batch's mean loss, as a function of `weights`: the same numbers are drawn."""
        self.reset(seed_of("batch", batch_loss.number))
        named = dict(zip(self.names, weights))
        found: Tensor = loss_with_tensors(self.model, self.loss_fn, named, batch_loss.batch)
        return found.mean()

    def sample_losses(self, *offsets: Sequence[Tensor]) -> list[Tensor]:
        """The loss of every sample at ``w + offset``, for each of the offsets.

        The results are in float64 on the CPU. Each batch is evaluated at all offsets before the
        next one, so that each sample has the same place in all results.

        Raises:
            UserError: If `loss_fn` returns one number for several samples.
        """
        found: list[list[Tensor]] = [[] for _ in offsets]
        for index, batch in enumerate(self.batches):
            for losses, offset in zip(found, offsets, strict=True):
                with torch.no_grad(), self.perturbed_weights(offset):
                    batch_loss = self.batch_loss(index, batch)
                each = checked_sample_losses(batch_loss.losses, batch_loss.size)
                losses.append(each.to("cpu", torch.float64))
        return [torch.cat(losses) for losses in found]

    # Long vectors.

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """One long vector from a tensor for each parameter."""
        return torch.cat([t.detach().reshape(-1).to(self.space.dtype) for t in tensors])

    def unflatten(self, vector: Tensor) -> Tensors:
        """The tensors for each parameter that a long vector consists of, as views."""
        parts = torch.split(vector, [p.numel() for p in self.params])
        return [part.view(p.shape).to(p.dtype) for part, p in zip(parts, self.params, strict=True)]


def checked_params(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that require a gradient, by name.

    Raises:
        UserError: If there are none, or if one is narrower than float32.
    """
    named: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise UserError("the model has no parameter that requires a gradient")
    for name, p in named.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise UserError(f"parameters must be float32 or float64, but {name} is {p.dtype}")
    return named


def checked_sample_losses(losses: Tensor, size: int) -> Tensor:
    """The losses of `size` samples.

    Raises:
        UserError: If there is one number for all of them.
    """
    if losses.numel() == 1 and size > 1:
        raise UserError(
            f"loss_fn must return the loss of each sample here, such as with reduction='none'; got "
            f"one number for {size}"
        )
    return losses.flatten()
