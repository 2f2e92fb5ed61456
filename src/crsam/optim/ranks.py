"""Numbers that all processes must agree on: a rank sees only the losses of its own samples."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_over_ranks(*values: Tensor) -> tuple[Tensor, ...]:
    """The means over all ranks of ``torch.distributed``, where there are several.

    One message for all of them. What is the same on all ranks stays as it is.
    """
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return values
    together = torch.stack(values)
    dist.all_reduce(together)
    return tuple(together / dist.get_world_size())
