"""Small nets in float64 with unequal batches, and their exact Hessians by the textbook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Batch = tuple[Tensor, Tensor]
LossFn = Callable[[nn.Module, Any], Tensor]


def mean_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def each_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def smoothed_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def flipped(model: nn.Module, batch: Batch) -> Tensor:
    return -mean_cross_entropy(model, batch)


@dataclass
class Case:
    model: nn.Module
    batches: list[Batch]
    loss_fn: LossFn = mean_cross_entropy

    @property
    def given(self) -> tuple[nn.Module, LossFn, list[Batch]]:
        """What every function of `crsam.curvature` starts with."""
        return self.model, self.loss_fn, self.batches

    @property
    def params(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def loss(self) -> Tensor:
        """The mean over all samples, in one graph."""
        sizes = [len(y) for _, y in self.batches]
        losses = [self.loss_fn(self.model, batch).mean() for batch in self.batches]
        return sum(n * loss for n, loss in zip(sizes, losses)) / sum(sizes)

    def gradient(self) -> Tensor:
        return flat(torch.autograd.grad(self.loss(), self.params, materialize_grads=True))

    @sdpa_kernel(SDPBackend.MATH)
    def hessian(self) -> Tensor:
        """Row by row, each the gradient of an entry of the gradient."""
        params = self.params
        grads = torch.autograd.grad(self.loss(), params, create_graph=True, materialize_grads=True)
        rows = []
        for entry in torch.cat([g.reshape(-1) for g in grads]):
            if not entry.requires_grad:
                rows.append(torch.zeros(sum(p.numel() for p in params), dtype=entry.dtype))
                continue
            row = torch.autograd.grad(entry, params, retain_graph=True, materialize_grads=True)
            rows.append(flat(row))
        return torch.stack(rows)


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def vectors(sizes: tuple[int, ...], features: int = 4, classes: int = 3) -> list[Batch]:
    g = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(n, features, dtype=torch.float64, generator=g),
            torch.randint(classes, (n,), generator=g),
        )
        for n in sizes
    ]


def images(sizes: tuple[int, ...]) -> list[Batch]:
    return [(x.view(-1, 1, 4, 4), y) for x, y in vectors(sizes, features=16)]


def sequences(sizes: tuple[int, ...]) -> list[Batch]:
    return [(x.view(-1, 3, 4), y) for x, y in vectors(sizes, features=12)]


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).double()


def conv_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


class Attention(nn.Module):
    """A transformer layer (attention, layer norms) and a linear one on the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 4, 0.0, F.gelu, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def attention() -> nn.Module:
    torch.manual_seed(1)
    return Attention().double()


def trained(case: Case, steps: int = 60) -> Case:
    opt = torch.optim.SGD(case.params, lr=0.5, momentum=0.9)
    for _ in range(steps):
        opt.zero_grad()
        case.loss().backward()
        opt.step()
    opt.zero_grad()
    return case


def frozen() -> nn.Sequential:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


class WithSpare(nn.Module):
    """A net with a parameter that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def tied() -> nn.Sequential:
    torch.manual_seed(1)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(4, 3)).double()


MAKERS: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(mlp(), vectors((5, 3, 1))),
    "mlp, trained": lambda: trained(Case(mlp(), vectors((5, 3, 1)))),
    "mlp, relu": lambda: Case(mlp(nn.ReLU), vectors((5, 3))),
    "one batch": lambda: Case(mlp(), vectors((6,))),
    "batch norm in training": lambda: Case(conv_net(), images((6, 3))),
    "batch norm in training, trained": lambda: trained(Case(conv_net(), images((6, 3)))),
    "batch norm in evaluation": lambda: Case(conv_net().eval(), images((6, 3))),
    "attention": lambda: Case(attention(), sequences((4, 2))),
    "attention in evaluation": lambda: Case(attention().eval(), sequences((4, 2))),
    "label smoothing": lambda: Case(mlp(), vectors((5, 3)), smoothed_cross_entropy),
    "a loss for each sample": lambda: Case(mlp(), vectors((5, 3)), each_cross_entropy),
    "frozen parameters": lambda: Case(frozen(), vectors((5, 3))),
    "unused parameters": lambda: Case(WithSpare(), vectors((5, 3))),
    "tied parameters": lambda: Case(tied(), vectors((5, 3))),
    "negative trace": lambda: Case(mlp(), vectors((5, 3)), flipped),
}


@cache
def exact(name: str) -> tuple[Case, Tensor]:
    """A case and its Hessian."""
    case = MAKERS[name]()
    return case, case.hessian()


every_case = pytest.mark.parametrize("name", MAKERS)
