"""What the image models have in common: their convolution, its initial weights, their last layers.

He et al., "Delving Deep into Rectifiers: Surpassing Human-Level Performance on ImageNet
Classification", 2015, for the initial weights.
"""

from __future__ import annotations

from torch import nn


def conv(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size, but for its stride; batch norm is its bias."""
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)


def normalized_head(channels: int, num_classes: int) -> nn.Sequential:
    """The end of a net whose blocks leave their sum as it is: norm, ReLU, mean, linear."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, num_classes),
    )


def initialize(model: nn.Module) -> None:
    r"""Draws convolutions from $N(0, 2/(k^2 c_{out}))$; other layers stay as torch makes them.

    Fan-out, by which gradients keep their size, as in the code that came with each of the papers.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def check_sizes(**sizes: int) -> None:
    """Raises ValueError unless all are whole numbers of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def blocks_per_group(depth: int, others: int) -> int:
    """How many blocks of two layers each of three groups has, beside `others` layers."""
    check_sizes(depth=depth)
    num, rest = divmod(depth - others, 6)
    if num < 1 or rest:
        first = ", ".join(str(6 * n + others) for n in (1, 2, 3))
        raise ValueError(f"depth must be 6n + {others} ({first}, …), got {depth}")
    return num
