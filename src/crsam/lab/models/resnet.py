"""He et al., "Deep Residual Learning for Image Recognition", 2016.

As commonly trained today: the 3×3 convolution of a bottleneck has the stride, not the first 1×1
(Goyal et al., "Accurate, Large Minibatch SGD", 2017), which changes no shape. Weights go by
torchvision's names, so that its published ones can be loaded.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from crsam.lab.models.layers import check_sizes, conv, initialize


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    """The identity where shapes allow it (the paper's option B)."""
    if inside == outside and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inside, outside, 1, stride), nn.BatchNorm2d(outside))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, around which the input is carried.

    Args:
        inside: Channels of the input.
        width: Channels of the convolutions.
        stride: Of the first convolution and of the shortcut.
    """

    expansion: ClassVar[int] = 1
    """Channels of the output, in widths."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inside, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inside, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1, around which the input is carried.

    Args:
        inside: Channels of the input.
        width: Channels of the 3×3 convolution; the output has four times as many.
        stride: Of the 3×3 convolution and of the shortcut.
    """

    expansion: ClassVar[int] = 4
    """Channels of the output, in widths."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = width * self.expansion
        self.conv1 = conv(inside, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, outside, 1)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample = _shortcut(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.downsample(x))


_PLANS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(nn.Module):
    """ResNet-18, -50 or -101.

    Args:
        depth: 18, 50 or 101.
        num_classes: Outputs.
        in_channels: Channels of the images.
        stem: ``"cifar"``: a 3×3 convolution, for small images. ``"imagenet"``: a 7×7 convolution
            and a max pool, both of stride 2.
        width: Channels of the first stage; 64 in the paper.
        zero_init_residual: Whether the last norm of each block starts at 0, and so the block as
            the identity (Goyal et al., 2017).

    Raises:
        ValueError: If there is no such net.

    Example:
        >>> import torch
        >>> from crsam.lab.models import ResNet
        >>> ResNet(18, num_classes=10, width=4)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        num_classes: int,
        in_channels: int = 3,
        stem: Literal["cifar", "imagenet"] = "cifar",
        width: int = 64,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
        if depth not in _PLANS:
            raise ValueError(f"depth must be one of {', '.join(map(str, _PLANS))}, got {depth!r}")
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem must be one of 'cifar', 'imagenet', got {stem!r}")
        large = stem == "imagenet"
        self.conv1 = conv(in_channels, width, 7 if large else 3, 2 if large else 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        block, nums = _PLANS[depth]
        channels = width
        stages = []
        for stage, num in enumerate(nums):
            blocks = []
            for i in range(num):
                blocks.append(block(channels, width << stage, 2 if stage and i == 0 else 1))
                channels = (width << stage) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        initialize(self)
        if zero_init_residual:
            self._zero_last_norms()

    def _zero_last_norms(self) -> None:
        for module in self.modules():
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))
