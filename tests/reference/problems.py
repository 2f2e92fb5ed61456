"""The small problems that the twins themselves are checked on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from . import TWINS, Twin


class Polynomial(nn.Module):
    """``L(w) = w'Aw/2 + b'w + sum(c w^3)/6``, the same for every sample."""

    def __init__(self, cubic: float = 0.0, shape: tuple[int, ...] = (4,)) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        root = torch.randn(4, 4, dtype=torch.float64, generator=g)
        self.A = root @ root.T + torch.eye(4, dtype=torch.float64)
        self.b = torch.randn(4, dtype=torch.float64, generator=g)
        self.c = cubic * torch.rand(4, dtype=torch.float64, generator=g)
        self.w = nn.Parameter(torch.randn(4, dtype=torch.float64, generator=g).reshape(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        w = self.w.reshape(-1)
        return (w @ self.A @ w / 2 + self.b @ w + (self.c * w**3).sum() / 6).expand(len(inputs))

    def gradient(self, w: Tensor) -> Tensor:
        return self.A @ w + self.b + self.c * w**2 / 2


def own_output(output: Tensor, targets: Tensor) -> Tensor:
    """The loss of a model whose outputs are its losses."""
    return output


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets, reduction="none")


def network(num_unused: int = 0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    ).double()
    for i in range(num_unused):
        model.register_parameter(f"unused{i}", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return model


def batch(t: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 + t)
    inputs = torch.randn(12, 5, dtype=torch.float64, generator=g)
    return inputs, torch.randint(3, (12,), generator=g)


def train(model: nn.Module, name: str, num_steps: int = 5, **hyper: Any) -> Twin:
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    twin = TWINS[name](model, base, cross_entropy, **hyper)
    for t in range(num_steps):
        twin.step(*batch(t), mask_seed=t)
    return twin


def train_base(model: nn.Module, num_steps: int = 5) -> None:
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    for t in range(num_steps):
        inputs, targets = batch(t)
        torch.manual_seed(t)
        base.zero_grad()
        torch.autograd.backward(cross_entropy(model(inputs), targets).mean())
        base.step()


def same(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-12, atol=1e-13)


def losses_and_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """What the model has at its own weights, by the ordinary backward with mask seed 1."""
    torch.manual_seed(1)
    model.zero_grad()
    losses = cross_entropy(model(inputs), targets)
    torch.autograd.backward(losses.mean())
    return losses.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def climb(model: nn.Module, radii: list[float]) -> None:
    """Moves the weights along the gradients they hold, each tensor by its own radius."""
    length = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))  # type: ignore[union-attr,misc]
    with torch.no_grad():
        for p, radius in zip(model.parameters(), radii, strict=True):
            assert p.grad is not None
            p.add_(p.grad, alpha=radius / length)


def followed(model: Polynomial, name: str, **hyper: Any) -> Tensor:
    """The vector the base stepped with in one step from the model's weights."""
    before = model.w.detach().clone()
    base = torch.optim.SGD(model.parameters(), lr=1.0)
    TWINS[name](model, base, own_output, **hyper).step(torch.zeros(2), torch.zeros(2), 0)
    return (before - model.w.detach()).reshape(-1)
