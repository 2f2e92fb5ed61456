"""Ways to run two passes that need nothing of each other, and which of them is the fastest.

Beside another pass, other algorithms of cuDNN serve best than alone. Alone they are timed, though,
and only one choice is kept for convolutions of one shape. But "of one shape" includes whether those
in float32 may be rounded to TF32, which does nothing to those in 16 bits: said otherwise, these are
chosen anew, and out of fewer, they are chosen differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Way(NamedTuple):
    """How the passes are run."""

    at_once: bool = False
    """On two CUDA streams."""
    num_choices: int | None = None
    """Out of how many of cuDNN's algorithms it chooses for them; None: as for any other pass."""


WAYS = {
    "in sequence": Way(),
    "at once": Way(True),
    "at once, convolutions chosen anew": Way(True, 3),
}


def ways(parallel: bool | Literal["auto"], dtypes: Iterable[torch.dtype]) -> dict[str, Way]:
    """Those to be tried.

    Args:
        parallel: Whether the passes run at once; ``"auto"``: if that is faster.
        dtypes: In which the model's convolutions are computed.

    Example:
        >>> list(ways("auto", []))
        ['in sequence', 'at once']
    """
    narrow = {torch.bfloat16, torch.float16}
    can_choose = torch.backends.cudnn.benchmark and {*dtypes} and {*dtypes} <= narrow
    return {
        name: way
        for name, way in WAYS.items()
        if parallel in ("auto", way.at_once) and (can_choose or way.num_choices is None)
    }


def fastest(
    tried: Mapping[str, Way], make: Callable[[Way], T], time: Callable[[T], float]
) -> tuple[str, T, dict[str, float]]:
    """The name of the fastest, what was made of it, and the time of each.

    A single one is not timed. Of several no more than two are there at a time: they may be large.
    """
    (name, way), *others = tried.items()
    best, times = make(way), {}
    if others:
        times[name] = time(best)
    for other, way in others:
        made = make(way)
        times[other] = time(made)
        if times[other] < times[name]:
            name, best = other, made
        del made
    return name, best, times


@contextmanager
def chosen_out_of(number: int | None) -> Iterator[None]:
    """Within, cuDNN chooses anew for convolutions in 16 bits, out of so many; None: it does not."""
    if number is None:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # since torch 2.9, which forbids to mix this with the older one
        owner, name = cudnn.conv, "fp32_precision"
        other: Any = "ieee" if cudnn.conv.fp32_precision == "tf32" else "tf32"
    else:
        owner, name, other = cudnn, "allow_tf32", not cudnn.allow_tf32
    before, limit = getattr(owner, name), cudnn.benchmark_limit
    try:
        setattr(owner, name, other)
        cudnn.benchmark_limit = number
        yield
    finally:
        setattr(owner, name, before)
        cudnn.benchmark_limit = limit
