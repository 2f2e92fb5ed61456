"""The probe: loss and gradient of this batch at ``w + offset``.

Every method of the family is a small function of a probe. `ClosureProbe` serves wherever a
closure does: it moves the weights, calls the closure and puts the weights back from a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors
from crsam.optim.closure import PerSample
from crsam.optim.replay import Replay

Closure = Callable[[], Tensor | float]


class Evaluation(NamedTuple):
    """What a probe saw at one point."""

    loss: Tensor
    """0-d, detached, float32 or wider."""
    grads: Tensors
    """One for each parameter, zero where there was none; the caller's to keep and to overwrite."""
    losses: Tensor | None = None
    """Of each sample, where the closure is a `PerSample`."""


@dataclass(frozen=True)
class Offset:
    """``scale · direction``, never multiplied out: CR-SAM's ``−e`` costs no memory."""

    direction: Tensors
    scale: Scale

    def __neg__(self) -> Offset:
        if isinstance(self.scale, list):
            return replace(self, scale=[-s for s in self.scale])
        return replace(self, scale=-self.scale)

    def length(self) -> Tensor:
        """Its L2 norm."""
        scale = self.scale
        if isinstance(scale, list):
            scale = torch.stack([torch.as_tensor(s) for s in scale])
        return torch.linalg.vector_norm(tn.norms(self.direction) * scale)


class Probe(Protocol):
    """Loss and gradient of the same batch, with the same random masks, at any offset from ``w``."""

    def __call__(self, offset: Offset | None = None, *, last: bool = False) -> Evaluation:
        """Loss and gradient at ``w + offset``: one pass.

        With `last`, no pass follows in this step: the offset is used up (its list of tensors is
        emptied once the weights are moved) and the gradients are handed over, not copied.
        """

    def both(self, offset: Offset) -> tuple[Evaluation, Evaluation]:
        """Loss and gradient at ``w + offset`` and at ``w − offset``: two passes, the last ones."""

    def losses(self, offset: Offset | None = None) -> Tensor:
        """The loss of each sample at ``w + offset``: one forward, no gradient."""

    def fisher(self, num_samples: int) -> Tensors:
        """The sum of the squared gradients of the first `num_samples` samples' losses at ``w``."""

    def on(self, part: Tensor) -> Probe:
        """The same probe, looking only at the samples with these indices."""


class ClosureProbe:
    """A `Probe` that calls the user's closure.

    Args:
        closure: Computes the loss, calls ``backward`` and returns the loss.
        params: The parameters to move and whose gradients to collect.
        replay: Gives every pass the random numbers and buffers of the first.
        part: The samples to look at; the closure must then be a `PerSample`.
    """

    def __init__(
        self,
        closure: Closure | PerSample,
        params: Sequence[nn.Parameter],
        replay: Replay,
        part: Tensor | None = None,
    ) -> None:
        self.closure = closure
        self.params = list(params)
        self.replay = replay
        self.part = part
        self.seen: set[int] = set()
        """Positions of the parameters that had a gradient in any pass."""
        self.sparse_dims: dict[int, int] = {}
        """Positions of those whose gradients came sparse, with the number of sparse dimensions."""
        self._saved: Tensors = []  # the weights, once a pass has moved them

    def on(self, part: Tensor) -> ClosureProbe:
        narrowed = ClosureProbe(self.closure, self.params, self.replay, part)
        narrowed.seen, narrowed.sparse_dims = self.seen, self.sparse_dims
        return narrowed

    def __call__(self, offset: Offset | None = None, *, last: bool = False) -> Evaluation:
        for p in self.params:
            p.grad = None
        with self._moved(offset, last), self.replay.one_pass(), torch.enable_grad():
            if isinstance(self.closure, PerSample):
                losses = self.closure.backward(self.part)
                loss: Tensor | float | None = losses.mean()
            else:
                losses = None
                loss = self.closure()
        return Evaluation(as_scalar(loss), self._collect(copy=not last), losses)

    def both(self, offset: Offset) -> tuple[Evaluation, Evaluation]:
        return self(offset), self(-offset, last=True)

    def losses(self, offset: Offset | None = None) -> Tensor:
        assert isinstance(self.closure, PerSample)
        with self._moved(offset), self.replay.one_pass(), torch.no_grad():
            return self.closure.losses(self.part).clone()

    def fisher(self, num_samples: int) -> Tensors:
        assert isinstance(self.closure, PerSample)
        count = min(num_samples, self.closure.num_samples)
        first = torch.arange(count, device=self.params[0].device)
        total: Tensors = [torch.zeros_like(p) for p in self.params]
        with self.replay.one_pass(), torch.enable_grad():
            for i, loss in enumerate(self.closure.losses(first), start=1):
                grads = torch.autograd.grad(
                    loss, self.params, retain_graph=i < count, materialize_grads=True
                )
                tn.add_(total, [g.square() for g in grads])  # they may share memory
        return total

    @contextmanager
    def _moved(self, offset: Offset | None, last: bool = False) -> Iterator[None]:
        torch.clear_autocast_cache()  # or a pass would see the last one's weights, cast to bf16
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

    def _collect(self, copy: bool) -> Tensors:
        """The gradients; copies of them where later passes may write over the same memory."""
        grads = [p.grad for p in self.params]
        if all(g is None for g in grads):
            raise RuntimeError(
                "the closure left no gradient on any parameter of this optimizer: it must compute "
                "the loss, call loss.backward() and return the loss"
            )
        dense: Tensors = []
        for i, (p, g) in enumerate(zip(self.params, grads, strict=True)):
            if g is None:
                dense.append(torch.zeros_like(p))
                continue
            self.seen.add(i)
            if g.is_sparse:
                self.sparse_dims[i] = g.sparse_dim()
                g = g.to_dense()
            dense.append(g)
        return tn.clone(dense) if copy else dense


def as_scalar(loss: Tensor | float | None) -> Tensor:
    """What a closure returned, as a 0-d tensor that is ours to keep."""
    if not isinstance(loss, Tensor | float | int):
        raise RuntimeError(f"the closure returned {type(loss).__name__}: it must return the loss")
    if not isinstance(loss, Tensor):
        loss = torch.tensor(loss, dtype=torch.float64)
    if loss.numel() != 1:
        raise RuntimeError(
            f"the closure returned a loss of shape {tuple(loss.shape)}: it must be one number, "
            "such as the mean over the batch"
        )
    # A copy: a closure may return the same accumulator in every pass.
    return loss.detach().reshape(()).to(tn.wide_dtype([loss]), copy=True)
