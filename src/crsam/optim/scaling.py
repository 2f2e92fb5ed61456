"""fp16: gradients unscaled pass by pass, and a scaler told of an overflow in any of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.distributed import Ranks
from crsam.errors import UserError


class Unscaling:
    """Undoes the scale of an enabled scaler for one step. It uses public methods alone.

    Args:
        scaler: The user's scaler.
        params: The parameters whose gradients are scaled.
        dummy: The optimizer that shows the scaler an overflow; see `new_overflow_dummy`.
    """

    def __init__(self, scaler: GradScaler, params: list[nn.Parameter], dummy: SGD) -> None:
        if any(p.dtype == torch.float16 for p in params):
            raise UserError(
                "weights are float16, whose gradients cannot be unscaled: keep them in float32 "
                "and compute under torch.autocast"
            )
        self.scaler, self.params, self.dummy = scaler, params, dummy
        self.inverse: Tensor | None = None
        self.overflow = torch.zeros((), device=params[0].device)

    def __call__(self, grads: Tensors) -> None:
        """Unscales in place; an overflow is remembered."""
        if self.inverse is None:
            if getattr(self.scaler, "_scale", self) is None:  # of a scaler that never scaled
                raise UserError(
                    "the loss was not scaled: let the closure call scaler.scale(loss).backward(), "
                    "and return the loss itself"
                )
            one = torch.ones_like(self.overflow)
            self.inverse = self.scaler.scale(one).double().reciprocal().float()  # without a wait
        tn.unscale_(grads, self.inverse, self.overflow)

    def conclude(self, everyone: Ranks) -> Tensor:
        """Returns 1 if a pass overflowed in any process, else 0.

        The scaler finds the same in a gradient of the dummy optimizer. Its ``update`` needs that.
        """
        found = self.overflow.repeat(len(self.params))
        (found,) = everyone.mean(tn.sum_over_parts(found, self.params).max())
        (parameter,) = self.dummy.param_groups[0]["params"]
        parameter.grad = torch.where(found > 0, torch.inf, 0.0)
        self.scaler.unscale_(self.dummy)
        parameter.grad = None
        return (found > 0).float()


def new_overflow_dummy(device: torch.device) -> SGD:
    """Returns an optimizer of nothing. Its one gradient tells a scaler whether a step overflowed.

    It is kept from step to step, so that the scaler notices a forgotten ``update``.
    """
    return SGD([nn.Parameter(torch.zeros((), device=device))], lr=0.0)
