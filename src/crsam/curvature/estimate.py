"""A number with its error."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class Estimate(NamedTuple):
    """The mean of independent draws, and how far it is off, as far as the draws can tell."""

    value: float
    stderr: float
    """The standard error: about 95 % of all estimates are within two of it of the truth."""

    @classmethod
    def of(cls, draws: Tensor) -> Estimate:
        """The mean of `draws`.

        Example:
            >>> import torch
            >>> Estimate.of(torch.tensor([1.0, 2.0, 3.0, 2.0], dtype=torch.float64)).value
            2.0
        """
        count = len(draws)
        stderr = (draws.std() / math.sqrt(count)).item() if count > 1 else math.nan
        return cls(draws.mean().item(), stderr)
