"""What only a GPU can show. Skipped elsewhere; run by hand on a machine that has one."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

import problems
from crsam.optim import ByGradientNorm
from optim.combos import METHODS, Maker

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def train(make: Maker, device: str, dtype: torch.dtype, num: int) -> torch.nn.Module:
    model = problems.conv_net(dtype).to(device)
    model[3].p = 0.0  # dropout masks differ between devices
    opt = make(SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
    for x, y in problems.batches(num, dtype):
        opt.step(problems.samples_of(model, x.to(device), y.to(device)))
    return model


@every_method
def test_cuda_equals_cpu(make: Maker) -> None:
    parts = repr(make(SGD(problems.conv_net().parameters(), lr=0.1)))
    if any(drawing in parts for drawing in ("Random(", "DynamicMask(", "direction='random'")):
        pytest.skip("draws differ between devices")
    ours, cpu = (train(make, device, torch.float64, 6) for device in ("cuda", "cpu"))
    for a, b in zip(ours.parameters(), cpu.parameters()):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_method
def test_no_step_waits_for_the_device(make: Maker) -> None:
    model = problems.conv_net(torch.float32).cuda()
    model[5].momentum = 0.1  # with a cumulative mean, torch's batch norm itself reads its count
    opt = make(SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
    if isinstance(opt.schedule, ByGradientNorm):
        pytest.skip("must decide by a number")
    batches = [(x.cuda(), y.cuda()) for x, y in problems.batches(4, torch.float32)]
    try:
        torch.cuda.set_sync_debug_mode("error")
        for x, y in batches:
            opt.step(problems.samples_of(model, x, y))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_dropout_masks_are_replayed_on_the_gpu() -> None:
    make = METHODS["crsam-linear"]
    model = problems.conv_net(torch.float32).cuda()
    masks: list[torch.Tensor] = []
    model[3].register_forward_hook(lambda m, i, out: masks.append(out.detach() == 0))
    opt = make(SGD(model.parameters(), lr=0.0), model=model, rho=1e-9)
    ((x, y),) = problems.batches(1, torch.float32)
    opt.step(problems.samples_of(model, x.cuda(), y.cuda()))
    assert len(masks) == 3
    assert all((mask == masks[0]).float().mean() > 0.999 for mask in masks)
