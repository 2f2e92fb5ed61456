"""Ways to run two passes that need nothing of each other, and which of them is the fastest.

cuDNN times its algorithms alone; beside another pass, others may serve better. torch keeps one
choice for all convolutions of one shape. But to it a shape includes whether those in float32 may be
rounded to TF32, which does nothing to those in 16 bits: while that is forbidden, these are chosen
anew, and out of fewer, they are chosen differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class PassStrategy(NamedTuple):
    """How the passes are run."""

    at_once: bool = False
    """On two CUDA streams."""
    num_choices: int | None = None
    """Out of how many of cuDNN's algorithms it chooses for them; None: as for any other pass."""


STRATEGIES = {
    "in sequence": PassStrategy(),
    "at once": PassStrategy(True),
    "at once, convolutions chosen anew": PassStrategy(True, 3),
}


def pass_strategies(
    parallel: bool | Literal["auto"], dtypes: Iterable[torch.dtype]
) -> dict[str, PassStrategy]:
    """Those to be tried.

    Args:
        parallel: Whether the passes run at once; ``"auto"``: if that is faster.
        dtypes: In which the model's convolutions are computed.

    Example:
        >>> list(pass_strategies("auto", []))
        ['in sequence', 'at once']
    """
    found, narrow = set(dtypes), {torch.bfloat16, torch.float16}
    can_choose = torch.backends.cudnn.benchmark and tf32_is_allowed() and found and found <= narrow
    return {
        name: way
        for name, way in STRATEGIES.items()
        if parallel in ("auto", way.at_once) and (can_choose or way.num_choices is None)
    }


def fastest(
    tried: Mapping[str, PassStrategy], make: Callable[[PassStrategy], T], time: Callable[[T], float]
) -> tuple[str, T, dict[str, float]]:
    """The name of the fastest, what was made of it, and the time of each.

    A single one is not timed. Of several no more than two are there at a time: they may be large.
    The first must work; another that fails takes for ever.
    """
    (name, way), *others = tried.items()
    best, times = make(way), {}
    if others:
        times[name] = time(best)
    for other, way in others:
        try:
            made = make(way)
        except Exception:  # too little memory, say, for two of them
            times[other] = math.inf
            continue
        times[other] = time(made)
        if times[other] < times[name]:
            name, best = other, made
        del made
    return name, best, times


@contextmanager
def chosen_out_of(number: int | None) -> Iterator[None]:
    """Within, cuDNN chooses anew for convolutions in 16 bits, out of so many; None: it does not.

    Those in float32 are not rounded to TF32 there.
    """
    if number is None:
        yield
        return
    limit, was_allowed = torch.backends.cudnn.benchmark_limit, tf32_is_allowed()
    try:
        _allow(False)
        torch.backends.cudnn.benchmark_limit = number
        yield
    finally:
        _allow(was_allowed)
        torch.backends.cudnn.benchmark_limit = limit


def tf32_is_allowed() -> bool:
    """Whether convolutions in float32 may be rounded to 10 bits on a GPU: torch's default."""
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # since torch 2.9, which forbids to mix this with the older one
        return bool(cudnn.conv.fp32_precision == "tf32")
    return bool(cudnn.allow_tf32)


def _allow(tf32: bool) -> None:
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        cudnn.conv.fp32_precision = "tf32" if tf32 else "ieee"
    else:
        cudnn.allow_tf32 = tf32
