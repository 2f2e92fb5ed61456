"""Mistakes in a closure, told with their cause and their cure."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy


class ClosureError(RuntimeError):
    """The closure does what it must not do. The step takes back what its passes have done."""


def check_real(loss: Any) -> None:
    """Raises `ClosureError` for a complex loss, which has no direction of descent."""
    if isinstance(loss, complex) or (isinstance(loss, Tensor) and loss.is_complex()):
        kind = loss.dtype if isinstance(loss, Tensor) else "complex"
        raise ClosureError(
            f"the loss is a complex number ({kind}). A loss must be real: use loss.real or "
            "loss.abs()"
        )


_IS_FREED = "Trying to backward through the graph a second time"
_HAS_MOVED = "modified by an inplace operation"
_TENSOR = re.compile(r"Tensor \[([\d, ]*)\]\].* is at version (\d+); expected version (\d+)")


def uses_an_old_graph(error: RuntimeError, params: Sequence[Tensor], is_first: bool) -> bool:
    """Whether a pass failed in a graph that is older than the pass.

    A pass after the first can only fail so if the graph is older. In a first pass the cause may be
    another mistake of the user, unless torch names one of `params`, which this optimizer has moved.
    """
    text = str(error)
    if not is_first:
        return _IS_FREED in text or _HAS_MOVED in text
    found = _TENSOR.search(text)
    if _HAS_MOVED not in text or found is None:
        return False
    shape, now, then = found.groups()
    if int(now) - int(then) < 2:  # a move writes several times
        return False
    sizes = sorted(map(int, re.findall(r"\d+", shape)))  # the tensor may be a transposed weight
    return any(sorted(p.shape) == sizes and _version(p) == int(now) for p in params)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def old_graph() -> ClosureError:
    """The error to raise from torch's own."""
    return ClosureError(
        "the closure uses a tensor that needs gradients and was computed before this call of the "
        "closure. A step calls the closure several times: the first backward() frees the graph of "
        "that tensor, and the weights move between the calls. Compute the tensor inside the "
        "closure, or detach() it"
    )


_Statistics = tuple[int, Tensor]


class StatisticsWatch:
    """Finds out once whether batch norm moves its running statistics after the first pass.

    Only an optimizer without ``model=`` needs it. It compares the statistics of all batch norms in
    this process before and after one pass. It uses no module hooks, because compiled models would
    be compiled again for them. It does not see scripted modules.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.found = False

    def begin(self, params: Sequence[Tensor]) -> list[tuple[_BatchNorm, _Statistics]]:
        """Batch norms that may move, with copies of their statistics."""
        sizes = [len(p) for p in params if p.dim() == 1]
        if len(set(sizes)) == len(sizes):  # a batch norm has a weight and a bias of one size
            return []
        # issubclass, because isinstance calls properties of proxies that libraries define.
        norms = [each for each in gc.get_objects() if issubclass(type(each), _BatchNorm)]
        begun = [(norm, _statistics(norm)) for norm in norms if norm.__dict__.get("training")]
        return [(norm, found) for norm, found in begun if found is not None]

    def end(self, begun: list[tuple[_BatchNorm, _Statistics]]) -> None:
        """Compares. With a momentum of 0, batches are counted and nothing else moves."""
        self.is_done = True
        for norm, (version, mean) in begun:
            now = _statistics(norm)
            if now is not None and now[0] != version and not torch.equal(now[1], mean):
                self.found = True


def _statistics(norm: _BatchNorm) -> _Statistics | None:
    """The version of its counter and a copy of its mean, where it has them."""
    mean, counter = (norm._buffers.get(name) for name in ("running_mean", "num_batches_tracked"))
    if mean is None or counter is None or is_lazy(mean) or mean.is_meta or counter.is_inference():
        return None
    return counter._version, mean.clone()
