"""Han et al., "Deep Pyramidal Residual Networks", 2017."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from crsam.lab.models.layers import blocks_per_group, check_sizes, conv, initialize, normalized_head


class PyramidBlock(nn.Module):
    """Norm, 3×3 convolution, norm, ReLU, 3×3 convolution, norm.

    The shortcut has no weights: a mean over 2 × 2 pixels where there is a stride, and zeros for the
    channels that the input lacks.

    Args:
        inside: Channels of the input.
        outside: Channels of the output, no fewer.
        stride: Of the first convolution and of the shortcut, 1 or 2.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = conv(inside, outside, 3, stride)
        self.norm2 = nn.BatchNorm2d(outside)
        self.conv2 = conv(outside, outside)
        self.norm3 = nn.BatchNorm2d(outside)
        # Rounded up, as the convolution does with images of an odd size.
        self.pool = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.num_new = outside - inside

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(y)))
        return self.norm3(y) + F.pad(self.pool(x), (0, 0, 0, 0, 0, self.num_new))


class PyramidNet(nn.Module):
    r"""The additive PyramidNet of basic blocks, for images of 32 × 32; depth 110 and α = 270.

    Block $k$ of $N$ has $16 + \alpha k/N$ channels. Where that is no whole number it is rounded, as
    in the authors' code; the paper writes that it is rounded down.

    Args:
        num_classes: Outputs.
        in_channels: Channels of the images.
        depth: 6n + 2, for n blocks in each of the three groups.
        alpha: Channels that the last block has beyond the first 16.

    Raises:
        ValueError: If there is no such net.

    Example:
        >>> import torch
        >>> from crsam.lab.models import PyramidNet
        >>> model = PyramidNet(num_classes=10, depth=8, alpha=6)
        >>> model.widths
        [16, 18, 20, 22]
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int, in_channels: int = 3, depth: int = 110, alpha: float = 270
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels)
        num = blocks_per_group(depth, others=2)
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be a number of at least 0, got {alpha}")
        self.widths = [round(16 + alpha * k / (3 * num)) for k in range(3 * num + 1)]
        """Channels after the first convolution and after each block."""
        self.stem = nn.Sequential(conv(in_channels, 16), nn.BatchNorm2d(16))
        blocks = [
            PyramidBlock(inside, outside, 2 if k in (num, 2 * num) else 1)
            for k, (inside, outside) in enumerate(zip(self.widths, self.widths[1:]))
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = normalized_head(self.widths[-1], num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))
