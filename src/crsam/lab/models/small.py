"""Nets that learn 8 × 8 images of digits in seconds on one core: a conv net and an MLP.

Ours; meant for scikit-learn's digits (Alpaydin and Kaynak, "Optical Recognition of Handwritten
Digits", UCI repository, 1998). Weights start as torch draws them.
"""

from __future__ import annotations

from torch import Tensor, nn

from crsam.lab.models.layers import check_sizes


class DigitsConv(nn.Module):
    """Three 3×3 convolutions, the last two of stride 2, and a linear layer.

    Args:
        num_classes: Outputs.
        in_channels: Channels of the images.
        width: Channels of the first convolution; the others have twice as many.
        batch_norm: Whether there is a batch norm, instead of biases, after each convolution.

    Raises:
        ValueError: If a size is not a whole number of at least 1.

    Example:
        >>> import torch
        >>> from crsam.lab.models import DigitsConv
        >>> DigitsConv()(torch.randn(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int = 10, in_channels: int = 1, width: int = 16, batch_norm: bool = True
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
        layers: list[nn.Module] = []
        inside = in_channels
        for outside, stride in ((width, 1), (2 * width, 2), (2 * width, 2)):
            layers.append(nn.Conv2d(inside, outside, 3, stride, padding=1, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm2d(outside))
            layers.append(nn.ReLU())
            inside = outside
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * inside, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class DigitsMLP(nn.Module):
    """Two hidden layers.

    Args:
        num_classes: Outputs.
        in_channels: Channels of the images.
        width: Units of a hidden layer.
        batch_norm: Whether there is a batch norm, instead of biases, after each hidden layer.

    Raises:
        ValueError: If a size is not a whole number of at least 1.

    Example:
        >>> import torch
        >>> from crsam.lab.models import DigitsMLP
        >>> DigitsMLP()(torch.randn(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        width: int = 128,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, in_channels=in_channels, width=width)
        layers: list[nn.Module] = [nn.Flatten()]
        for inside in (64 * in_channels, width):
            layers.append(nn.Linear(inside, width, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm1d(width))
            layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
