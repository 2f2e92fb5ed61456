"""Quadratic losses, of which everything is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bowl(nn.Module):
    """``L(w) = ½ wᵀ A w + bᵀ w``."""

    def __init__(self, A: Tensor, b: Tensor, w: Tensor) -> None:
        super().__init__()
        self.w, self.A, self.b = nn.Parameter(w), A, b

    def forward(self, ones: Tensor) -> Tensor:
        return (self.w @ self.A @ self.w / 2 + self.b @ self.w) * ones.mean()


def bowl(eigenvalues: list[float], seed: int = 0) -> Bowl:
    g = torch.Generator().manual_seed(seed)
    n = len(eigenvalues)
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=g)).Q
    A = Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T
    b, w = torch.randn(2, n, dtype=torch.float64, generator=g)
    return Bowl(A, b, w)


ONES = [torch.ones(3, dtype=torch.float64)]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)
