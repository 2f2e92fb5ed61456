"""Zagoruyko and Komodakis, "Wide Residual Networks", 2016."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from crsam.lab.models.layers import blocks_per_group, check_sizes, conv, initialize, normalized_head


class WideBlock(nn.Module):
    """Norm, ReLU, 3×3 convolution, twice; dropout between the convolutions.

    Where the shape changes, the shortcut is a 1×1 convolution of the first ReLU's output.

    Args:
        inside: Channels of the input.
        outside: Channels of the output.
        stride: Of the first convolution and of the shortcut.
        dropout: Probability with which an activation is dropped.
    """

    def __init__(self, inside: int, outside: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = conv(inside, outside, 3, stride)
        self.norm2 = nn.BatchNorm2d(outside)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(outside, outside)
        same = inside == outside and stride == 1
        self.shortcut = None if same else conv(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = F.relu(self.norm2(self.conv1(active)))
        y = self.conv2(self.dropout(y))
        return y + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """WRN-`depth`-`widen_factor`, for images of 32 × 32; WRN-28-10 unless told otherwise.

    The depth counts all convolutions, those of the three shortcuts too.

    Args:
        num_classes: Outputs.
        in_channels: Channels of the images.
        depth: 6n + 4, for n blocks in each of the three groups.
        widen_factor: Channels of the groups, in multiples of 16, 32 and 64.
        dropout: Between the convolutions of a block; 0, or 0.3 in the paper.

    Raises:
        ValueError: If there is no such net.

    Example:
        >>> import torch
        >>> from crsam.lab.models import WideResNet
        >>> model = WideResNet(num_classes=10, depth=10, widen_factor=1)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        depth: int = 28,
        widen_factor: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels, widen_factor=widen_factor)
        num = blocks_per_group(depth, others=4)
        channels = 16
        self.stem = conv(in_channels, channels)
        groups = []
        for group in range(3):
            outside = (16 << group) * widen_factor
            blocks = []
            for i in range(num):
                blocks.append(WideBlock(channels, outside, 2 if group and i == 0 else 1, dropout))
                channels = outside
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)
        self.head = normalized_head(channels, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.groups(self.stem(x)))
