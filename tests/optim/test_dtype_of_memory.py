"""What a method keeps from step to step follows the parameters' dtype."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("looksam", {"k": 3}),
    ("friendlysam", {}),
    ("crsam", {"every": 3, "warmup": 0}),
    ("ssam", {"mask": "dynamic", "period": 2, "total_steps": 9}),
    ("ssam", {"mask": "fisher", "period": 2}),
]
methods = pytest.mark.parametrize(("method", "options"), METHODS)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model: nn.Module, opt: crsam.SharpnessAware, num: int = 2) -> None:
    g = torch.Generator().manual_seed(1)
    for _ in range(num):
        x = torch.randn(16, 5, generator=g).to(next(model.parameters()).dtype)
        y = torch.randint(3, (16,), generator=g)

        def losses(part: Any, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(model(x[part]), y[part], reduction="none")

        opt.step(crsam.PerSample(losses, len(x)))


def kept(opt: crsam.SharpnessAware) -> list[Tensor]:
    entries = opt.state_dict()["state"].values()
    found = [t for e in entries for name, t in e.items() if str(name).startswith("crsam_")]
    assert found
    return [t for t in found if t.dtype != torch.bool]


@methods
@dtypes
def test_after_the_model_is_cast(method: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    model = net()
    opt = crsam.make(method, SGD(model.parameters(), lr=0.1), **options)
    train(model, opt, 4)
    model.to(dtype)
    cast = copy.deepcopy((model, opt))
    train(model, opt)
    assert all(p.dtype == dtype for p in model.parameters())
    other, resumed = cast
    state = opt.__class__.state_dict(resumed)
    anew = crsam.make(method, SGD(other.parameters(), lr=0.1), **options)
    anew.load_state_dict(state)
    assert all(t.dtype == dtype for t in kept(anew))
    train(other, anew)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@methods
@dtypes
def test_a_checkpoint_of_another_dtype(
    method: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    model, other = net(), net().to(dtype)
    opt, theirs = (
        crsam.make(method, SGD(m.parameters(), lr=0.1, momentum=0.9), **options)
        for m in (model, other)
    )
    train(model, opt, 4)
    theirs.load_state_dict(opt.state_dict())
    assert all(t.dtype == dtype for t in kept(theirs))
    assert all(t.dtype == torch.float32 for t in kept(opt))
    train(other, theirs)
    assert all(p.dtype == dtype and p.isfinite().all() for p in other.parameters())
