"""Small problems that the optimizer tests share: a conv net with batch norm and dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import crsam


def conv_net(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        # No bias before batch norm: its gradient is rounding noise, which Adam would blow up.
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.BatchNorm2d(6, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    ).to(dtype)


def batches(num: int, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Tensor, Tensor]]:
    """Three classes of noisy 6 × 6 images with two channels, 16 at a time."""
    g = torch.Generator().manual_seed(1)
    means = torch.randn(3, 2, 6, 6, dtype=dtype, generator=g)
    for _ in range(num):
        y = torch.randint(3, (16,), generator=g)
        yield means[y] + torch.randn(16, 2, 6, 6, dtype=dtype, generator=g), y


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, reduction="none")


def closure_of(
    model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    """What users write."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def samples_of(model: nn.Module, x: Tensor, y: Tensor) -> crsam.PerSample:
    """The same for methods that look at single samples."""
    return crsam.PerSample(lambda part: cross_entropy(model(x[part]), y[part]), len(x))


class Twice(nn.Module):
    """Modules under two names, as some of timm's models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        self.head, self.norm = self.net[3], self.net[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)
