"""One small task for all frameworks, and the plain loop that they must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import crsam

PLAIN_METHODS = [name for name in crsam.methods() if name != "esam"]
"""Those that do not look at single samples."""


def net(dtype: torch.dtype = torch.float32, batch_norm: bool = True) -> nn.Sequential:
    """With batch norm and dropout: what goes wrong if passes are not one function."""
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2)] if batch_norm else [nn.Tanh()]
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.Linear(8, 3)).to(dtype)


def data(dtype: torch.dtype = torch.float32, num: int = 48) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(num, 5, generator=g, dtype=dtype), torch.randint(3, (num,), generator=g)


def loader(batch_size: int = 8, dtype: torch.dtype = torch.float32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(dtype)), batch_size)


def make(method: str, of: nn.Module, /, **options: Any) -> crsam.SharpnessAware:
    if method == "crsam":
        options = {"warmup": 3, **options}
    return crsam.make(method, SGD(of.parameters(), lr=0.1, momentum=0.9), **options)


def seed_batch(epoch: int, index: int) -> None:
    """Frameworks draw numbers of their own between batches: masks follow the batch instead."""
    torch.manual_seed(100 * epoch + index)


def train_plainly(
    method: str = "crsam",
    *,
    epochs: int = 1,
    accumulate: int = 1,
    batch_size: int = 8,
    clip: Callable[[list[nn.Parameter]], object] | None = None,
    dtype: torch.dtype = torch.float32,
    batch_norm: bool = True,
    **options: Any,
) -> tuple[nn.Module, list[Tensor]]:
    """The loop that users write; the trained net and the loss of each step."""
    model = net(dtype, batch_norm)
    opt = make(method, model, model=model, **options)
    if clip is not None:
        params = list(model.parameters())
        opt.base.register_step_pre_hook(lambda *_: clip(params))
    losses = []
    for epoch in range(epochs):
        batches = list(enumerate(loader(batch_size, dtype)))
        for start in range(0, len(batches), accumulate):
            window = batches[start : start + accumulate]

            def closure(epoch: int = epoch, window: list[Any] = window) -> Tensor:
                opt.zero_grad()
                parts = []
                for index, (x, y) in window:
                    seed_batch(epoch, index)
                    loss = F.cross_entropy(model(x), y) / accumulate
                    loss.backward()
                    parts.append(loss.detach())
                return torch.stack(parts).sum()

            losses.append(opt.step(closure))
    return model, losses


def clip_norm(params: list[nn.Parameter]) -> None:
    clip_grad_norm_(params, 0.05)


def assert_same(a: nn.Module, b: nn.Module) -> None:
    """Weights and batch-norm statistics, bit for bit."""
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def assert_differ(a: nn.Module, b: nn.Module) -> None:
    assert any(not torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
