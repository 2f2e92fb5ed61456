"""Targets as probabilities: Szegedy et al., "Rethinking the Inception Architecture", 2016."""

from __future__ import annotations

import torch
from torch import Tensor

from crsam.lab.data.augment.base import check_count, check_number


def smooth_one_hot(
    labels: Tensor, num_classes: int, smoothing: float = 0.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    r"""$(1 - \epsilon)$ for the label, and $\epsilon / K$ for every class, the label's included.

    Args:
        labels: Whole numbers of shape (N,).
        num_classes: $K$.
        smoothing: $\epsilon$; 0 gives one-hot targets.
        dtype: Of the result, of shape (N, K).

    Example:
        >>> smooth_one_hot(torch.tensor([1]), 4, smoothing=0.2)
        tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
    """
    check_count("num_classes", num_classes, 1)
    check_number("smoothing", smoothing, 0, 1)
    if labels.is_floating_point() or labels.ndim != 1:
        raise ValueError(
            f"labels must be whole numbers of shape (N,), "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    hot = labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)
    return hot.to(dtype) * (1 - smoothing) + smoothing / num_classes
