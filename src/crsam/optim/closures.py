"""Closures that leave the backward pass to the step: it can then cut the batch, and scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.optim.double_step_guard import ClosureError

Scaler = Callable[[Tensor], Tensor]


def check_real(loss: Any) -> None:
    """Raises `ClosureError` for a complex loss, which has no direction of descent."""
    if isinstance(loss, complex) or (isinstance(loss, Tensor) and loss.is_complex()):
        kind = loss.dtype if isinstance(loss, Tensor) else "complex"
        raise ClosureError(
            f"the loss is a complex number ({kind}). A loss must be real: use loss.real or "
            "loss.abs()"
        )


class Selection(NamedTuple):
    """Some samples of the batch."""

    indices: Tensor
    weights: Tensor
    """Of each of them in the loss."""

    def padded(self, length: int) -> Selection:
        """The same, with samples of weight 0 up to `length`."""
        missing = max(0, length - len(self.indices))
        indices = torch.cat([self.indices, self.indices.new_zeros(missing)])
        return Selection(indices, torch.cat([self.weights, self.weights.new_zeros(missing)]))


class SplittableClosure(ABC):
    """A closure over a batch that can be cut into micro-batches."""

    rounding: float = 0.0
    """Relative, of the dtype of the losses that were last backpropagated."""

    @abstractmethod
    def pieces(self) -> list[tuple[float, SplittableClosure]]:
        """The micro-batches, each a closure of its own, with their weights, which sum to 1."""

    @abstractmethod
    def backward(
        self,
        part: Selection | None = None,
        scale: Scaler = lambda loss: loss,
        no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> tuple[Tensor, Tensor | None]:
        """Backpropagates the mean loss, one micro-batch after the other.

        Args:
            part: The samples to look at; None: all.
            scale: Applied to what is backpropagated.
            no_sync: Entered for all micro-batches but the last: gradients need not travel there.

        Returns:
            The mean loss, and that of each sample, where they are known.
        """

    def __call__(self) -> Tensor:
        """As a plain closure: backpropagates and returns the mean loss of the batch."""
        return self.backward()[0]


Closure = Callable[[], Tensor | float]
"""A plain closure. It computes the loss, calls ``backward`` and returns the loss."""
AnyClosure = Closure | SplittableClosure


class PerSample(SplittableClosure):
    """A closure over the samples of a batch, for methods that look at some or each of them.

    `ESAM` and any method with the `PartOfBatch` schedule take the perturbed gradient on part of
    the batch; `SSAM` with the Fisher mask needs single samples' gradients. A plain closure cannot
    give them those. This one can, and serves every other method too.

    Args:
        losses: ``losses(part)`` returns the loss of each sample in `part`, a 1-d tensor. `part` is
            a slice or a tensor of indices: use it to index inputs and targets alike. It must not
            call ``backward``.
        num_samples: The size of the batch.
        accumulate: Micro-batches that the batch is cut into, to save memory.

    Example:
        >>> import torch, crsam
        >>> from torch.nn import functional as F
        >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
        >>> opt = crsam.ESAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> def losses(part):
        ...     return F.cross_entropy(model(x[part]), y[part], reduction="none")
        >>> loss = opt.step(crsam.PerSample(losses, len(x)))
    """

    def __init__(
        self, losses: Callable[[Tensor | slice], Tensor], num_samples: int, accumulate: int = 1
    ) -> None:
        if num_samples < 1:
            raise UserError(f"num_samples must be at least 1, got {num_samples}")
        if not 1 <= accumulate <= num_samples:
            raise UserError(
                f"accumulate must be between 1 and the {num_samples} samples, got {accumulate}"
            )
        self._losses = losses
        self.num_samples = num_samples
        self.accumulate = accumulate

    def losses(self, part: Tensor | slice = slice(None)) -> Tensor:
        """The loss of each sample in `part`."""
        losses = self._losses(part)
        check_real(losses)
        expected = len(range(self.num_samples)[part]) if isinstance(part, slice) else len(part)
        if not isinstance(losses, Tensor) or losses.shape != (expected,):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RuntimeError(
                f"losses(part) must return one loss for each of the {expected} samples asked for, "
                f"got {got}: use reduction='none'"
            )
        return losses

    def all_losses(self, part: Selection | None = None) -> Tensor:
        """Of all samples, or those in `part`, a micro-batch at a time; for no gradient."""
        return torch.cat([self.losses(some) for some, _ in self._micro_batches(part)])

    def backward(
        self,
        part: Selection | None = None,
        scale: Scaler = lambda loss: loss,
        no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> tuple[Tensor, Tensor | None]:
        found: list[Tensor] = []
        micro_batches = self._micro_batches(part)
        for i, (some, weights) in enumerate(micro_batches, start=1):
            with no_sync() if i < len(micro_batches) else nullcontext():
                losses = self.losses(some)
                scale(self._weighed(losses, weights)).backward()  # type: ignore[no-untyped-call]
            wide = torch.promote_types(losses.dtype, torch.float32)
            found.append(losses.detach().to(wide, copy=True))
            self.rounding = torch.finfo(losses.dtype).eps
        loss = [self._weighed(losses, w) for losses, (_, w) in zip(found, micro_batches)]
        return torch.stack(loss).sum(), torch.cat(found)

    def _weighed(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            return losses.sum() / self.num_samples
        return (losses * weights.to(losses.dtype)).sum()

    def pieces(self) -> list[tuple[float, SplittableClosure]]:
        return [
            (len(range(self.num_samples)[some]) / self.num_samples, _Piece(self, some))
            for some in self._slices()
        ]

    def _micro_batches(self, part: Selection | None) -> list[tuple[Tensor | slice, Tensor | None]]:
        """The samples of each and their weights; always `accumulate` of them, so that all ranks
        take as many passes."""
        if part is not None:
            pairs = (t.tensor_split(self.accumulate) for t in part.padded(self.accumulate))
            return list(zip(*pairs, strict=True))
        slices = self._slices() if self.accumulate > 1 else [slice(None)]
        return [(some, None) for some in slices]

    def _slices(self) -> list[slice]:
        """As equal as can be."""
        cuts = [self.num_samples * i // self.accumulate for i in range(self.accumulate + 1)]
        return [slice(a, b) for a, b in pairwise(cuts)]


class _Piece(PerSample):
    """Some consecutive samples of a batch as a batch of their own."""

    def __init__(self, whole: PerSample, some: slice) -> None:
        def losses(part: Tensor | slice) -> Tensor:
            return whole.losses(some if isinstance(part, slice) else part + some.start)

        super().__init__(losses, some.stop - some.start)


class MicroBatches(SplittableClosure):
    """A closure over the micro-batches of a batch, whose gradients are accumulated.

    The perturbation is that of the whole batch, or each micro-batch's own (``scope="micro"``).
    Under `DistributedDataParallel` (with ``model=``) gradients travel once a pass, not once a
    micro-batch.

    Args:
        loss_of: ``loss_of(micro_batch)`` returns the mean loss of a micro-batch. It must not call
            ``backward``.
        batches: The micro-batches, in any form that `loss_of` takes.
        weights: How much each counts, such as its number of samples or tokens; None: all alike.

    Example:
        >>> import torch, crsam
        >>> from torch.nn import functional as F
        >>> model = torch.nn.Linear(4, 3)
        >>> opt = crsam.SAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> micro_batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(4)]
        >>> def loss_of(micro_batch):
        ...     x, y = micro_batch
        ...     return F.cross_entropy(model(x), y)
        >>> loss = opt.step(crsam.MicroBatches(loss_of, micro_batches))
    """

    def __init__(
        self,
        loss_of: Callable[[Any], Tensor],
        batches: Sequence[Any],
        weights: Sequence[float] | None = None,
    ) -> None:
        if not batches:
            raise UserError("there must be at least one micro-batch, got none")
        weights = [1.0] * len(batches) if weights is None else list(weights)
        if len(weights) != len(batches) or min(weights) < 0 or not sum(weights) > 0:
            raise UserError(
                f"weights must be {len(batches)} numbers, one for each micro-batch, none negative "
                f"and not all 0, got {weights}"
            )
        self._loss_of, self._batches = loss_of, list(batches)
        self._weights = [weight / sum(weights) for weight in weights]

    def backward(
        self,
        part: Selection | None = None,
        scale: Scaler = lambda loss: loss,
        no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> tuple[Tensor, Tensor | None]:
        assert part is None, "samples cannot be told apart"
        found: list[Tensor] = []
        for i, (batch, weight) in enumerate(zip(self._batches, self._weights), start=1):
            with no_sync() if i < len(self._batches) else nullcontext():
                loss = self._loss_of(batch)
                check_real(loss)
                if not isinstance(loss, Tensor) or loss.numel() != 1:
                    raise RuntimeError(
                        "loss_of(micro_batch) must return the mean loss of the micro-batch, got "
                        f"{tuple(loss.shape) if isinstance(loss, Tensor) else loss!r}"
                    )
                scale(loss * weight).backward()  # type: ignore[no-untyped-call]
            wide = torch.promote_types(loss.dtype, torch.float32)
            found.append(loss.detach().to(wide).reshape(()) * weight)
            self.rounding = torch.finfo(loss.dtype).eps
        return torch.stack(found).sum(), None

    def pieces(self) -> list[tuple[float, SplittableClosure]]:
        return [
            (weight, MicroBatches(self._loss_of, [batch]))
            for batch, weight in zip(self._batches, self._weights)
            if weight > 0
        ]
