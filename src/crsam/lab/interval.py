"""How sure a mean of a few differences is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A mean, and between which values the true one lies."""

    mean: float
    low: float
    high: float
    num: int
    """Of values that it is the mean of; of one, nothing is known and the ends are NaN."""


LEVEL = 0.95
"""How often an interval holds the true mean, if differences are normal."""


def interval(differences: Sequence[float]) -> Interval:
    r"""Student's interval of the mean, $\bar d \pm t_{n-1}\, s/\sqrt n$.

    Differences of runs that share a seed: first weights, order of the batches and augmentation are
    the same in both, so what they have in common is not counted as noise.

    Args:
        differences: One for each seed.

    Example:
        >>> found = interval([0.1, 0.2, 0.3])
        >>> f"{found.mean:.2f}, {found.low:.3f} to {found.high:.3f}"
        '0.20, -0.048 to 0.448'
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    num = len(differences)
    mean = statistics.fmean(differences) if num else math.nan
    if num < 2:
        return Interval(mean, math.nan, math.nan, num)
    t = float(stdtrit(num - 1, (1 + LEVEL) / 2))
    half = t * statistics.stdev(differences) / math.sqrt(num)
    return Interval(mean, mean - half, mean + half, num)
