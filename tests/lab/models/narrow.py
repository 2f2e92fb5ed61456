"""Every model of the registry, narrow enough for one core."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crsam.lab.models import make_model


class Narrow(NamedTuple):
    name: str
    options: dict[str, Any]
    image: tuple[int, int, int] = (3, 16, 16)

    def model(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return make_model(self.name, 5, **self.options).to(dtype)

    def batch(self, dtype: torch.dtype = torch.float32, num: int = 6) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(1)
        x = torch.randn(num, *self.image, dtype=dtype, generator=g)
        return x, torch.randint(5, (num,), generator=g)

    def settled(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """In eval mode, with the batch's own statistics in its norms, as after training."""
        model = self.model(dtype)
        for norm in norms(model):
            norm.momentum = 1.0
        model(self.batch(dtype)[0])
        return model.eval()


IMAGENET = {"stem": "imagenet", "width": 4}
TINY_VIT = {"image_size": 16, "patch": 8, "width": 12, "depth": 2, "heads": 3}
NARROW = {
    "resnet18": Narrow("resnet18", {"width": 4}),
    "resnet18, imagenet": Narrow("resnet18", IMAGENET, (3, 64, 64)),
    "resnet50": Narrow("resnet50", {"width": 4}),
    "resnet50, imagenet": Narrow("resnet50", IMAGENET, (3, 64, 64)),
    "resnet101": Narrow("resnet101", {"width": 2}),
    "wrn28_10": Narrow("wrn28_10", {"depth": 16, "widen_factor": 1}),
    "wrn28_10, dropout": Narrow("wrn28_10", {"depth": 10, "widen_factor": 2, "dropout": 0.3}),
    "pyramidnet110": Narrow("pyramidnet110", {"depth": 14, "alpha": 10}),
    "vit_s32": Narrow("vit_s32", TINY_VIT),
    "vit_b32": Narrow("vit_b32", TINY_VIT),
    "digits_conv": Narrow("digits_conv", {"batch_norm": False}, (1, 8, 8)),
    "digits_conv, norm": Narrow("digits_conv", {"batch_norm": True}, (1, 8, 8)),
    "digits_mlp": Narrow("digits_mlp", {"batch_norm": False}, (1, 8, 8)),
    "digits_mlp, norm": Narrow("digits_mlp", {"batch_norm": True}, (1, 8, 8)),
}


def norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
