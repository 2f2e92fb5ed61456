"""What a step saw, as plain numbers: for any logger."""

from __future__ import annotations

from typing import Any

import torch

from crsam.errors import UserError
from crsam.optim.optimizer import SharpnessAware


def scalars(optimizer: Any, prefix: str = "crsam/") -> dict[str, float]:
    """The optimizer's ``report`` as numbers, by name: one line for TensorBoard, MLflow or W&B.

    Reads all of them off the device at once: the only wait for it, so call it when you log.

    Args:
        optimizer: One of ours, or what Lightning, Fabric or Accelerate made of it.
        prefix: Put before every name.

    Returns:
        Nothing before the first step.

    Example:
        >>> import torch, crsam
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = crsam.SAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> def closure():
        ...     loss = model(torch.ones(2, 4)).square().mean()
        ...     loss.backward()
        ...     return loss
        >>> loss = opt.step(closure)
        >>> list(scalars(opt))
        ['crsam/loss', 'crsam/grad_norm', 'crsam/rho', 'crsam/loss_plus', 'crsam/sharpness']
    """
    report = unwrapped(optimizer).report
    if not report:
        return {}
    values = torch.stack([value.detach().double() for value in report.values()]).tolist()
    return {prefix + name: value for name, value in zip(report, values)}


def unwrapped(optimizer: Any) -> SharpnessAware:
    """Our optimizer inside a framework's wrapper.

    Raises:
        UserError: If there is none.
    """
    inner = optimizer
    while hasattr(inner, "optimizer"):  # Lightning's, Fabric's and Accelerate's name for it
        inner = inner.optimizer
    if not isinstance(inner, SharpnessAware):
        raise UserError(
            f"expected an optimizer of crsam, such as crsam.CRSAM(base), got {type(inner).__name__}"
        )
    return inner
