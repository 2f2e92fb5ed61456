"""The net of the benchmarks: ResNet-18 with the stem for small images."""

from __future__ import annotations

from torch import Tensor, nn


def conv(c_in: int, c_out: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(c_out)
    )


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is carried."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(c_in, c_out, 3, stride), nn.ReLU(inplace=True), conv(c_out, c_out, 3)
        )
        same = c_in == c_out and stride == 1
        self.carry = nn.Identity() if same else conv(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.carry(x)).relu_()


class ResNet18(nn.Sequential):
    """He et al., "Deep Residual Learning for Image Recognition", 2016, with a 3×3 stem.

    Args:
        width: Channels of the first stage; 64 is the net of the paper (11.2 million weights).
        num_classes: Outputs.
    """

    def __init__(self, width: int = 64, num_classes: int = 10) -> None:
        layers: list[nn.Module] = [conv(3, width, 3), nn.ReLU(inplace=True)]
        channels = width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                layers.append(Block(channels, width << stage, stride))
                channels = width << stage
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
        super().__init__(*layers, *head)
