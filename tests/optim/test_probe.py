"""Loss and gradient at ``w + offset``, with the weights put back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import crsam
from crsam.optim import ClosureProbe, Offset
from crsam.optim.closures import Selection
from crsam.optim.replay import Replay


class Setup:
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
        self.params = list(self.model.parameters())
        self.x = torch.randn(5, 3, dtype=dtype)
        self.probe = ClosureProbe(
            crsam.PerSample(self.losses, 5), self.params, Replay(self.params, None)
        )

    def losses(self, part: Tensor | slice) -> Tensor:
        return self.model(self.x[part]).square().squeeze(1)

    def gradient(self, part: Tensor | slice = slice(None)) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.losses(part).mean(), self.params)


@torch.no_grad()
def test_probing_at_an_offset_is_evaluating_moved_weights() -> None:
    s = Setup()
    before = [p.clone() for p in s.params]
    direction = [torch.randn_like(p) for p in s.params]
    seen = s.probe(Offset(direction, torch.tensor(0.1, dtype=torch.float64)))
    assert all(torch.equal(p, b) for p, b in zip(s.params, before))
    for p, d in zip(s.params, direction):
        p.add_(0.1 * d)
    with torch.enable_grad():
        expected = s.gradient()
        torch.testing.assert_close(seen.loss, s.losses(slice(None)).mean().detach())
    torch.testing.assert_close(seen.grads, list(expected))


@torch.no_grad()
def test_minus_an_offset_points_the_other_way() -> None:
    s = Setup()
    direction = [torch.randn_like(p) for p in s.params]
    scales = [0.1, 0.2, 0.3, 0.4]
    minus = s.probe(-Offset(direction, scales))
    other = s.probe(Offset([-d for d in direction], scales))
    torch.testing.assert_close(minus.grads, other.grads)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["number", "tensor", "numbers", "tensors"])
def test_length_of_an_offset(kind: str) -> None:
    direction = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    scale = {"number": 2.0, "tensor": torch.tensor(2.0), "numbers": [2.0, 2.0]}.get(
        kind, [torch.tensor(2.0)] * 2
    )
    assert Offset(direction, scale).length() == 26


@torch.no_grad()
def test_gradients_are_the_callers_to_keep() -> None:
    s = Setup()
    first = s.probe()
    kept = [g.clone() for g in first.grads]
    s.probe(Offset([torch.randn_like(p) for p in s.params], 1.0))
    assert all(torch.equal(a, b) for a, b in zip(first.grads, kept))


@torch.no_grad()
def test_part_of_the_batch() -> None:
    s = Setup()
    part = torch.tensor([1, 3])
    narrowed = s.probe.on(Selection(part, torch.full((2,), 0.5)))
    with torch.enable_grad():
        torch.testing.assert_close(narrowed().grads, list(s.gradient(part)))
    torch.testing.assert_close(s.probe.losses()[part], narrowed.losses())


@torch.no_grad()
def test_fisher_is_the_sum_of_squared_sample_gradients() -> None:
    s = Setup()
    s.probe()
    with torch.enable_grad():
        samples = [s.gradient(torch.tensor([i])) for i in range(3)]
    expected = [torch.stack(g).square().sum(0) for g in zip(*samples)]
    torch.testing.assert_close(s.probe.fisher(3), expected)


@torch.no_grad()
def test_low_precision_losses_are_kept_in_float32() -> None:
    s = Setup(torch.bfloat16)
    assert s.probe().loss.dtype == torch.float32
