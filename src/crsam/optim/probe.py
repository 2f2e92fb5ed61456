"""The probe: loss and gradient of this batch at ``w + offset``.

`ClosureProbe` works with any closure. It moves the weights, calls the closure and puts the weights
back from a copy. `Functional` has a probe that never moves the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors
from crsam.distributed import Parallel
from crsam.optim.closures import AnyClosure, PerSample, Selection, SplittableClosure, check_real
from crsam.optim.replay import Replay
from crsam.optim.scaling import Unscaling
from crsam.optim.validate import no_gradient, warn_of_replaced


class Evaluation(NamedTuple):
    """What a probe saw at one point."""

    loss: Tensor
    """0-d, detached, float32 or wider."""
    grads: Tensors
    """One for each parameter, zero where there was none. The caller may write into them."""
    losses: Tensor | None = None
    """The loss of each sample, where the closure is a `PerSample`."""
    norms: Tensor | None = None
    """The norm of each gradient, where it is known already."""
    rounding: float = 0.0
    """The relative rounding error of the dtype of the loss. It is 0 for a Python number."""
    offset: Offset | None = None
    """Where that was. None: at ``w``. The list of its direction may be empty by now."""


class Offset(NamedTuple):
    """``scale · direction``, never multiplied out: CR-SAM's ``−e`` costs no memory."""

    direction: Tensors
    scale: Scale
    norm: Tensor | None = None
    """The norm of the direction, where it is known already."""
    known_length: Tensor | None = None
    """Its length, where it is known already."""

    def __neg__(self) -> Offset:
        if isinstance(self.scale, list):
            return self._replace(scale=[-s for s in self.scale])
        return self._replace(scale=-self.scale)

    def length(self) -> Tensor:
        """Returns its L2 norm."""
        scale = self.scale
        if self.known_length is not None:
            return self.known_length
        if self.norm is not None and not isinstance(scale, list):
            return abs(self.norm * scale)
        if isinstance(scale, list):
            scale = torch.stack([torch.as_tensor(s) for s in scale])
        return torch.linalg.vector_norm(tn.norms(self.direction) * scale)

    def measured(self) -> Offset:
        """Returns the same offset. Its length is known from here on, without the direction."""
        return self._replace(known_length=self.length())


class Probe(Protocol):
    """Loss and gradient of the same batch, with the same random masks, at any offset from ``w``."""

    def __call__(self, offset: Offset | None = None, *, last: bool = False) -> Evaluation:
        """Returns loss and gradient at ``w + offset``: one pass.

        With `last`, no pass follows in this step. The list of the direction is then emptied as soon
        as the weights are moved, and the gradients are handed over without a copy.
        """

    def at(self, offsets: Sequence[Offset]) -> list[Evaluation]:
        """Returns loss and gradient at each offset, at once where the probe can.

        These are the last passes of the step.
        """

    def losses(self, offset: Offset | None = None) -> Tensor:
        """Returns the loss of each sample at ``w + offset``: one forward pass, no gradient."""

    def fisher(self, num_samples: int) -> Tensors:
        """Returns the sum of the squared gradients of the first samples' losses at ``w``."""

    def on(self, part: Selection) -> Probe:
        """Returns the same probe on some of the samples."""


class ClosureProbe:
    """A `Probe` that calls the user's closure.

    Args:
        closure: Computes the loss, calls ``backward`` and returns the loss.
        params: The parameters that are moved. Their gradients are collected.
        replay: Gives every pass the random numbers and buffers of the first.
        parallel: How the model is spread over processes; None: it is not.
        unscaling: Undoes the scale of gradients that were scaled for fp16.
        part: The samples to look at; the closure must then be a `PerSample`.
    """

    def __init__(
        self,
        closure: AnyClosure,
        params: Sequence[nn.Parameter],
        replay: Replay,
        parallel: Parallel | None = None,
        unscaling: Unscaling | None = None,
        part: Selection | None = None,
    ) -> None:
        self.closure = closure
        self.params = list(params)
        self.replay = replay
        self.parallel = parallel or Parallel(None, [], "batch", None)
        self.unscaling = unscaling
        self.part = part
        self.seen: set[int] = set()
        """Positions of the parameters that had a gradient in any pass."""
        self.sparse_dims: dict[int, int] = {}
        """Positions of those whose gradients came sparse, with the number of sparse dimensions."""
        self._saved: Tensors = []  # the weights, once a pass has moved them

    def on(self, part: Selection) -> ClosureProbe:
        narrowed = ClosureProbe(
            self.closure, self.params, self.replay, self.parallel, self.unscaling, part
        )
        narrowed.seen, narrowed.sparse_dims = self.seen, self.sparse_dims
        return narrowed

    def __call__(self, offset: Offset | None = None, *, last: bool = False) -> Evaluation:
        for p in self.params:
            p.grad = None
        quiet = self.parallel.no_sync() if self.parallel.gradients_are_local else nullcontext()
        with self._moved(offset, last), self.replay.one_pass(), quiet, torch.enable_grad():
            loss, losses = self._backward()
        grads = self._collect(copy=not last)
        eps = (
            self.closure.rounding if isinstance(self.closure, SplittableClosure) else rounding(loss)
        )
        return Evaluation(as_scalar(loss), grads, losses, rounding=eps, offset=offset)

    def _backward(self) -> tuple[Tensor | float, Tensor | None]:
        if not isinstance(self.closure, SplittableClosure):
            return self.closure(), None
        return self.closure.backward(self.part, self._scaled, self.parallel.no_sync)

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self.unscaling is None else self.unscaling.scaler.scale(loss)

    def _unscaled(self, grads: Tensors) -> Tensors:
        if self.unscaling is not None:
            self.unscaling(grads)
        return grads

    def at(self, offsets: Sequence[Offset]) -> list[Evaluation]:
        *others, last = offsets
        return [*(self(offset) for offset in others), self(last, last=True)]

    def losses(self, offset: Offset | None = None) -> Tensor:
        assert isinstance(self.closure, PerSample)
        with self._moved(offset), self.replay.one_pass(), torch.no_grad():
            return self.closure.all_losses(self.part).clone()

    def fisher(self, num_samples: int) -> Tensors:
        assert isinstance(self.closure, PerSample)
        ranks = self.parallel.of_a_pass
        owned = ranks.counts(self.closure.num_samples, self.params[0].device)
        own = range(sum(owned[: ranks.rank]), sum(owned[: ranks.rank + 1]))
        wanted = range(min(num_samples, sum(owned)))
        num_mine = len([i for i in wanted if i in own])
        # A process without samples runs one anyway, because the others wait for its forward pass.
        asked = torch.arange(num_mine or 1, device=self.params[0].device)
        total: Tensors = [torch.zeros_like(p) for p in self.params]
        with self.replay.one_pass(), torch.enable_grad(), self.parallel.no_sync():
            losses = self.closure.losses(asked)
            if self.parallel.is_sharded:
                for i in wanted:
                    # The mean over all processes, of which but one has the sample.
                    weight = float(ranks.size) if i in own else 0.0
                    loss = losses[i - own.start if i in own else 0] * weight
                    self._add_square(total, loss, more=i + 1 < len(wanted))
                return total
            for i in range(num_mine):
                grads = torch.autograd.grad(
                    self._scaled(losses[i]),
                    self.params,
                    retain_graph=i + 1 < num_mine,
                    materialize_grads=True,
                )
                own_grads = tn.clone(grads)  # they may share memory
                tn.add_(total, [g.square_() for g in self._unscaled(own_grads)])
        return ranks.sum_(total)

    def _add_square(self, total: Tensors, loss: Tensor, more: bool) -> None:
        """Adds a squared gradient. Only ``backward`` reduces those of sharded parameters."""
        for p in self.params:
            p.grad = None
        self._scaled(loss).backward(retain_graph=more)  # type: ignore[no-untyped-call]
        for t, p in zip(total, self.params):
            if p.grad is not None:
                (grad,) = self._unscaled([tn.laid_out_as(p, p.grad)])
                t += grad.square()
            p.grad = None

    @contextmanager
    def _moved(self, offset: Offset | None, last: bool = False) -> Iterator[None]:
        torch.clear_autocast_cache()  # or a pass would see the last one's weights, cast to bf16
        self.parallel.forget_gathered()
        if offset is None:
            yield
            return
        saved = self._saved or tn.clone(self.params)
        self._saved = [] if last else saved
        moved: Tensors = list(self.params)
        try:
            # w := scale·direction + saved, written into w itself, so that the offset needs no copy.
            tn.add_(tn.scale_(tn.copy_(moved, offset.direction), offset.scale), saved)
            if last:
                offset.direction.clear()
            yield
        finally:
            tn.copy_(moved, saved)
            torch.clear_autocast_cache()
            self.parallel.forget_gathered()

    def _collect(self, copy: bool) -> Tensors:
        """Returns the gradients. They are copies where later passes write into the same memory."""
        dense: Tensors = []
        shared = tn.may_be_sharded() or self.params[0].device.type != "cpu"
        if not tn.may_be_sharded():  # the common case, in which Python's time counts
            for p in self.params:
                grad = p.grad
                if grad is None or grad.is_sparse:
                    break
                # Somebody else holds this gradient, or the memory that it is a view of.
                shared = shared or sys.getrefcount(grad) > _WHEN_ALONE or grad._is_view()
                dense.append(grad)
        if len(dense) < len(self.params):
            dense = self._dense(is_first=copy and not self.seen)
        elif len(self.seen) < len(dense):
            self.seen.update(range(len(dense)))
        self._unscaled(dense)
        # DDP, CUDA graphs and hooks may write the gradients of every pass into the same memory.
        return tn.clone(dense) if copy and shared else dense

    def _dense(self, is_first: bool) -> Tensors:
        """Returns a gradient of each parameter, also where it is missing or sparse."""
        grads = [p.grad for p in self.params]
        if all(g is None for g in grads):
            raise no_gradient(self.params, self.replay.model)
        model = self.replay.model if is_first and not self.parallel.is_sharded else None
        if model is not None and any(g is None for g in grads):
            warn_of_replaced(self.params, model)
        dense: Tensors = []
        for i, (p, g) in enumerate(zip(self.params, grads, strict=True)):
            if g is None:
                dense.append(torch.zeros_like(p))
                continue
            self.seen.add(i)
            if g.is_sparse:
                self.sparse_dims[i] = g.sparse_dim()
                g = g.to_dense()
            dense.append(tn.laid_out_as(p, g))
        return dense


def _count_when_alone() -> int:
    """Returns the reference count of a gradient that its parameter alone holds."""
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.zeros(1)
    grad = p.grad
    return sys.getrefcount(grad)


_WHEN_ALONE = _count_when_alone()


def as_scalar(loss: Tensor | float | None) -> Tensor:
    """Returns what a closure returned as a 0-d tensor that is ours to keep."""
    if type(loss) is Tensor and not loss.ndim and loss.dtype in (torch.float32, torch.float64):
        # A copy: a closure may return the same accumulator in every pass.
        return loss.detach().clone()
    check_real(loss)
    if not isinstance(loss, Tensor | float | int):
        raise RuntimeError(f"the closure returned {type(loss).__name__}: it must return the loss")
    if not isinstance(loss, Tensor):
        loss = torch.tensor(loss, dtype=torch.float64)
    if loss.numel() != 1:
        raise RuntimeError(
            f"the closure returned a loss of shape {tuple(loss.shape)}: it must be one number, "
            "such as the mean over the batch"
        )
    loss = tn.full(loss)
    return loss.detach().reshape(()).to(tn.wide_dtype([loss]), copy=True)


def rounding(loss: Tensor | float) -> float:
    """The relative rounding error of what a closure returned, as far as its dtype tells."""
    if not isinstance(loss, Tensor) or not loss.is_floating_point():
        return 0.0
    return torch.finfo(loss.dtype).eps
