"""What only a GPU can show. Skipped elsewhere; run by hand on a machine that has one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crsam import curvature
from curvature.cases import (
    Case,
    attention,
    conv_net,
    each_cross_entropy,
    images,
    mean_cross_entropy,
    mlp,
    sequences,
    vectors,
)
from curvature.functions import FUNCTIONS, LOSS, numbers

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:.*probes do not tell the trace"),
]


def cases() -> list[Case]:
    return [
        Case(mlp(), vectors((6, 3))),
        Case(conv_net(), images((6, 3))),
        Case(attention(), sequences((4, 2))),
    ]


def on_cuda(case: Case) -> Case:
    return Case(case.model.cuda(), [(x.cuda(), y.cuda()) for x, y in case.batches], case.loss_fn)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("which", range(3))
def test_cuda_gives_what_the_cpu_gives(name: str, which: int) -> None:
    """The probes too are the same on every device."""
    cpu, cuda = cases()[which], on_cuda(cases()[which])
    expected = numbers(FUNCTIONS[name](cpu.model, LOSS, cpu.batches))
    found = numbers(FUNCTIONS[name](cuda.model, LOSS, cuda.batches))
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_state_of_the_gpu_is_left_as_found_and_masks_are_replayed(name: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3)]
    case = on_cuda(Case(nn.Sequential(*layers).double(), vectors((6, 3))))
    state = torch.cuda.get_rng_state()
    first = numbers(FUNCTIONS[name](case.model, LOSS, case.batches))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.rand(3, device="cuda")
    assert numbers(FUNCTIONS[name](case.model, LOSS, case.batches)) == pytest.approx(
        first, rel=1e-9, abs=1e-12
    )


def test_float32_convolutions_are_not_computed_in_tf32() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 64, 3), nn.SiLU(), nn.Conv2d(64, 64, 3), nn.Flatten())
    net.append(nn.LazyLinear(3))
    x = torch.randn(64, 1, 16, 16)
    y = torch.randint(3, (64,))
    net(x)
    exact = Case(net.double().cuda(), [(x.double().cuda(), y.cuda())])
    expected = curvature.top_eigenvalues(*exact.given)
    single = Case(net.float().cuda(), [(x.cuda(), y.cuda())])
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert curvature.top_eigenvalues(*single.given) == pytest.approx(expected, rel=2e-6)
    finally:
        torch.set_float32_matmul_precision(precision)


def test_memory_does_not_grow_with_probes_or_batches() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 3)).cuda()
    batch = (torch.randn(512, 64, device="cuda"), torch.randint(3, (512,), device="cuda"))
    peaks = []
    for num_probes, num_batches in ((2, 1), (2, 2), (40, 1), (10, 6)):
        torch.cuda.reset_peak_memory_stats()
        curvature.hessian_trace(
            net, mean_cross_entropy, [batch] * num_batches, num_probes=num_probes
        )
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[1:]) <= peaks[1] * 1.01


def test_a_loader_that_gives_cpu_tensors_works_with_a_loss_that_moves_them() -> None:
    case = Case(mlp(), vectors((6, 3)))
    expected = curvature.hessian_trace(*case.given, num_probes=3)
    found = curvature.hessian_trace(
        case.model.cuda(),
        lambda m, b: each_cross_entropy(m, (b[0].cuda(), b[1].cuda())),
        case.batches,
        num_probes=3,
    )
    assert found == pytest.approx(expected, rel=1e-9)
