"""Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition", 2021.

The plain one, with a class token and learned positions, without dropout. ViT-S is that of Touvron
et al., "Training data-efficient image transformers", 2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam.lab.models.layers import check_sizes


class Attention(nn.Module):
    """Every token looks at every other, with several heads.

    Written out: torch's fused kernels have no second derivative, and so no Hessian products.

    Args:
        width: Of a token.
        heads: Number of heads, among which the width is shared out.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        each = width // self.heads
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, each).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * each**-0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    """Attention, then two linear layers, each after a norm and around which the input is carried.

    Args:
        width: Of a token; the hidden layer has four times as many units.
        heads: Of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.hidden = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.out(F.gelu(self.hidden(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer; ViT-S/32 unless told otherwise.

    Args:
        num_classes: Outputs.
        in_channels: Channels of the images.
        image_size: Side of the images; a multiple of the patches'.
        patch: Side of a patch.
        width: Of a token.
        depth: Number of blocks.
        heads: Of each attention; a divisor of the width.

    Raises:
        ValueError: If the sizes do not fit together.

    Example:
        >>> from crsam.lab.models import ViT
        >>> model = ViT(10, image_size=32, patch=8, width=24, depth=2, heads=3)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 224,
        patch: int = 32,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels, image_size=image_size,
                    patch=patch, width=width, depth=depth, heads=heads)  # fmt: skip
        if image_size % patch:
            raise ValueError(f"image_size must be a multiple of patch = {patch}, got {image_size}")
        if width % heads:
            raise ValueError(f"heads must divide width = {width}, got {heads}")
        tokens = (image_size // patch) ** 2 + 1
        self.patches = nn.Conv2d(in_channels, width, patch, patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc = nn.Linear(width, num_classes)
        self._initialize()

    def _initialize(self) -> None:
        for weights in (self.class_token, self.positions):
            nn.init.trunc_normal_(weights, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(x), -1, -1)
        x = self.blocks(torch.cat([first, x], 1) + self.positions)
        return self.fc(self.norm(x)[:, 0])


def resized_positions(positions: Tensor, wanted: Tensor) -> Tensor | None:
    """Position embeddings of another grid of patches, interpolated; None if they are of none.

    Those of the class token, and of other tokens before the patches, stay as they are.

    Args:
        positions: Of shape (1, tokens, width).
        wanted: Of the shape that they are to have.

    Example:
        >>> resized_positions(torch.ones(1, 1 + 7 * 7, 8), torch.empty(1, 1 + 5 * 5, 8)).shape
        torch.Size([1, 26, 8])
    """
    if positions.ndim != 3 or wanted.ndim != 3 or positions.shape[::2] != wanted.shape[::2]:
        return None
    tokens, width = positions.shape[1:]
    for first in range(min(tokens, wanted.shape[1], 9)):  # class token, registers; never many
        old, new = (math.isqrt(num - first) for num in (tokens, wanted.shape[1]))
        if old**2 == tokens - first and new**2 == wanted.shape[1] - first:
            grid = positions[:, first:].float().reshape(1, old, old, width).permute(0, 3, 1, 2)
            grid = F.interpolate(grid, (new, new), mode="bicubic", antialias=True)
            patches = grid.permute(0, 2, 3, 1).reshape(1, new * new, width)
            return torch.cat([positions[:, :first], patches.to(positions.dtype)], 1)
    return None
