"""Fabric: the closure as everywhere; fp16 too."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import crsam
from integrations import tasks

L = pytest.importorskip("lightning")
from crsam.integrations.fabric import SharpnessAwareSteps, callbacks  # noqa: E402


def train(method: str, accumulate: int = 1, **options: Any) -> tuple[torch.nn.Module, Any]:
    fabric = L.Fabric(accelerator="cpu", **options)
    if not any(isinstance(each, SharpnessAwareSteps) for each in fabric._callbacks):
        fabric._callbacks += callbacks()  # run from a checkout that is not installed
    net = tasks.net()
    model, opt = fabric.setup(net, tasks.make(method, net, model=net, max_norm=0.05))
    batches = list(enumerate(fabric.setup_dataloaders(tasks.loader())))
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]

        def closure(window: list[Any] = window) -> Tensor:
            opt.zero_grad()
            losses = []
            for i, (x, y) in window:
                tasks.seed_batch(0, i)
                with fabric.no_backward_sync(model, enabled=i != window[-1][0]):
                    loss = F.cross_entropy(model(x), y) / accumulate
                    fabric.backward(loss)
                losses.append(loss.detach())
            return torch.stack(losses).sum()

        opt.step(closure)
    return net, opt


@pytest.mark.parametrize("method", ["crsam", "sam", "looksam"])
def test_steps_go_as_in_the_plain_loop(method: str) -> None:
    net, _ = train(method, accumulate=2)
    tasks.assert_same(net, tasks.train_plainly(method, accumulate=2, max_norm=0.05)[0])


@pytest.mark.skipif(
    "scaler" not in inspect.signature(crsam.SAM.step).parameters, reason="step takes no scaler yet"
)
def test_fp16_takes_closures() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    plugin = L.fabric.plugins.MixedPrecision("16-mixed", "cpu", scaler)
    net, _ = train("crsam", plugins=[plugin])
    plain, _ = tasks.train_plainly(max_norm=0.05)
    for a, b in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
    assert scaler.get_scale() == 256.0


def test_a_schedule_free_base_is_switched_through_fabric() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    fabric = L.Fabric(accelerator="cpu")
    net = tasks.net()
    base = schedulefree.SGDScheduleFree(net.parameters(), lr=0.1)
    _, opt = fabric.setup(net, crsam.SAM(base, model=net))
    opt.train()
    assert base.param_groups[0]["train_mode"]
    opt.eval()
    assert not base.param_groups[0]["train_mode"]
