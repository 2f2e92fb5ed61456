"""scikit-learn's handwritten digits, small nets for them, and one training run."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

Data = tuple[Tensor, Tensor, Tensor, Tensor]


def digits(noise: float = 0.0, seed: int = 0) -> Data:
    """Training images and labels, a share `noise` of them wrong, and clean test ones."""
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(raw.target)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=g)
    x, y = x[order], y[order]
    num_train = 1437
    train_y = y[:num_train].clone()
    wrong = torch.rand(num_train, generator=g) < noise
    train_y[wrong] = (train_y[wrong] + torch.randint(1, 10, (num_train,), generator=g)[wrong]) % 10
    return x[:num_train], train_y, x[num_train:], y[num_train:]


def conv_net(norm: bool) -> nn.Module:
    def block(inside: int, outside: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=not norm)
        return [conv, *([nn.BatchNorm2d(outside)] if norm else []), nn.ReLU()]

    layers = [*block(1, 16, 1), *block(16, 32, 2), *block(32, 32, 2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def mlp(norm: bool) -> nn.Module:
    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Linear(inside, outside), *([nn.BatchNorm1d(outside)] if norm else []), nn.ReLU()]

    return nn.Sequential(nn.Flatten(), *block(64, 128), *block(128, 128), nn.Linear(128, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: conv_net(norm=False),
    "conv, batch norm": lambda: conv_net(norm=True),
    "MLP": lambda: mlp(norm=False),
    "MLP, batch norm": lambda: mlp(norm=True),
}


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        share = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return 100 * share


def train(
    model: nn.Module, opt: Optimizer, data: Data, epochs: int, batch_size: int = 64, seed: int = 0
) -> float:
    """Trains with a cosine schedule; returns the test accuracy after the last epoch."""
    x, y, test_x, test_y = data
    g = torch.Generator().manual_seed(seed)
    total = epochs * math.ceil(len(x) / batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=g).split(batch_size):

            def closure(part: Tensor = part) -> Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x[part]), y[part])
                loss.backward()
                return loss

            opt.step(closure)
            scheduler.step()
    return accuracy(model, test_x, test_y)
