"""fp16: gradients unscaled pass by pass, and a scaler told of an overflow in any of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD

from crsam import _sharded
from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.errors import UserError
from crsam.optim.ranks import Ranks


class Unscaling:
    """Undoes a scaler's scale for one step, through nothing but its public methods.

    Args:
        scaler: Enabled.
        params: Whose gradients they are.
    """

    def __init__(self, scaler: GradScaler, params: list[nn.Parameter]) -> None:
        if any(p.dtype == torch.float16 for p in params):
            raise UserError(
                "weights are float16, whose gradients cannot be unscaled: keep them in float32 "
                "and compute under torch.autocast"
            )
        self.scaler, self.params = scaler, params
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

    def conclude(self, everyone: Ranks, witness: SGD) -> Tensor:
        """1 if any pass overflowed in any process, else 0; the scaler finds the same, for its
        ``update``, in a gradient of the `witness`."""
        found = self.overflow.repeat(len(self.params))
        (found,) = everyone.mean(_sharded.sum_over_parts(found, self.params).max())
        (parameter,) = witness.param_groups[0]["params"]
        parameter.grad = torch.where(found > 0, torch.inf, 0.0)
        self.scaler.unscale_(witness)
        parameter.grad = None
        return (found > 0).float()


def new_witness(device: torch.device) -> SGD:
    """An optimizer of nothing: its one gradient tells a scaler whether a step overflowed.

    Kept from step to step: a scaler then notices an ``update`` that was forgotten.
    """
    return SGD([nn.Parameter(torch.zeros((), device=device))], lr=0.0)
