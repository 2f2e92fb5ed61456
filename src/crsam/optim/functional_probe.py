"""The other probe: it knows model and loss, so it never moves the weights.

Its perturbed passes need nothing of each other. They can run at the same time, and nothing in a
step waits for the host, so that a whole step can be one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.distributed import Parallel, Ranks
from crsam.errors import UserError
from crsam.optim.closures import Selection
from crsam.optim.pass_strategies import chosen_out_of
from crsam.optim.perturbed_weights import cast, moved
from crsam.optim.probe import Evaluation, Offset, as_scalar, rounding
from crsam.optim.replay import Replay

if TYPE_CHECKING:
    from crsam.optim.functional import Functional


class FunctionalProbe:
    """A `Probe` of a `Functional`.

    Args:
        closure: Knows model, loss and batch.
        params: The parameters to take gradients of.
        parallel: How the model is spread over processes; None: it is not.

    Raises:
        UserError: If each process holds but a part of the weights.
    """

    def __init__(
        self,
        closure: Functional,
        params: Sequence[nn.Parameter],
        parallel: Parallel | None = None,
    ) -> None:
        self.closure = closure
        self.ranks = Ranks() if parallel is None else parallel.of_a_pass
        if parallel is not None and parallel.is_sharded:
            raise UserError("a Functional takes whole weights, and these are spread over processes")
        self.params = list(params)
        self.replay = Replay(params, None) if closure.draws else None
        self.seen: set[int] = set()
        self.sparse_dims: dict[int, int] = {}
        self._first = True
        self._dtypes = closure.dtypes(self.params)
        self._own_dtypes = tuple(p.dtype for p in self.params)

    def __call__(self, offset: Offset | None = None, *, last: bool = False) -> Evaluation:
        if offset is None:
            return self._wide(self._at(cast(list(self.params), self._dtypes)))
        weights = self._moved(offset)
        if last:
            offset.direction.clear()
        return self._wide(self._at(weights))._replace(offset=offset)

    def at(self, offsets: Sequence[Offset]) -> list[Evaluation]:
        """Evaluates one offset after the other, or the last two at once on two streams.

        Where steps are fused, the gradients of two offsets stay in the dtypes that they were
        computed in.
        """
        if len(offsets) == 1:
            return [self(offsets[0], last=True)]
        *others, up, down = offsets
        found = [self(offset) for offset in others]
        self.closure.pairs = True
        if self.closure.way.at_once and self.params[0].is_cuda:
            with chosen_out_of(self.closure.way.num_choices):
                both = self._at_once((up, down))
        else:
            one, other = (self._one_of_both(self._moved(side)) for side in (up, down))
            both = one, other
        pairs = zip(both, (up, down))
        return [*found, *(each._replace(offset=offset) for each, offset in pairs)]

    def _at_once(self, sides: tuple[Offset, Offset]) -> tuple[Evaluation, Evaluation]:
        main = torch.cuda.current_stream()
        streams = _side_streams(self.params[0].device)
        found, ready = [], main.record_event()
        for number, (stream, side) in enumerate(zip(streams, sides)):
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                weights = self._moved(side)
                ready = stream.record_event()  # the other side is moved while this pass begins
                evaluation = self._one_of_both(weights, number)
                if not number:  # while the other pass is still under way
                    evaluation = evaluation._replace(norms=tn.norms(evaluation.grads))
                found.append(evaluation)
        for stream in streams:
            main.wait_stream(stream)
        for evaluation in found:  # made on another stream, used on this one from here on
            for tensor in (evaluation.loss, evaluation.norms, *evaluation.grads):
                if tensor is not None:
                    tensor.record_stream(main)
        return found[0], found[1]

    def _at(self, weights: Tensors, side: int = 0) -> Evaluation:
        closure = self.closure
        buffers = closure.own_buffers() if self._first else closure.spare_buffers(side)
        with self.replay.one_pass() if self.replay is not None else nullcontext():
            loss, extra, grads = self.closure.at(self.params, weights, buffers)
        if self._first:
            self._first, self.closure.extra = False, extra
            self.closure.count()
        return Evaluation(as_scalar(loss), self._dense(grads), rounding=rounding(loss))

    def _one_of_both(self, weights: Tensors, side: int = 0) -> Evaluation:
        evaluation = self._at(weights, side)
        stays = tn.is_fusing() and self.ranks.size == 1
        return evaluation if stays else self._wide(evaluation)

    def _moved(self, offset: Offset) -> Tensors:
        return moved(list(self.params), offset.direction, offset.scale, self._dtypes)

    def _wide(self, evaluation: Evaluation) -> Evaluation:
        """With gradients in the parameters' own dtypes, averaged over processes."""
        # No wrapper sees these gradients, and so none has averaged them.
        return evaluation._replace(grads=self.ranks.mean_(cast(evaluation.grads, self._own_dtypes)))

    def _dense(self, grads: list[Tensor | None]) -> Tensors:
        self.seen |= {i for i, g in enumerate(grads) if g is not None}
        return [
            torch.zeros_like(p) if g is None else g for p, g in zip(self.params, grads, strict=True)
        ]

    def losses(self, offset: Offset | None = None) -> Tensor:
        raise TypeError("a Functional cannot tell samples apart: use crsam.PerSample")

    def fisher(self, num_samples: int) -> Tensors:
        raise TypeError("a Functional cannot tell samples apart: use crsam.PerSample")

    def on(self, part: Selection) -> FunctionalProbe:
        raise TypeError("a Functional cannot tell samples apart: use crsam.PerSample")


_streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}


def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Two streams, the same ones in every step: the allocator keeps memory by stream."""
    if device not in _streams:
        _streams[device] = (_stream(device), _stream(device))
    return _streams[device]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
