"""Batches cut into micro-batches, with the perturbation of the whole or of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam
import problems
from crsam.errors import UserError
from optim.combos import METHODS

every_method = pytest.mark.parametrize("name", METHODS)
PARTS = [slice(i, i + 16) for i in range(0, 64, 16)]


class Problem:
    """64 samples in float64; no batch norm or dropout, which see micro-batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(64, 5).double(), torch.randint(2, (64,))
        self.model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()

    def loss_of(self, part: slice) -> Tensor:
        return F.cross_entropy(self.model(self.x[part]), self.y[part])

    def losses(self, part: Tensor | slice) -> Tensor:
        return problems.cross_entropy(self.model(self.x[part]), self.y[part])

    def in_the_closure(self) -> Tensor:
        self.model.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part in PARTS:
            loss = self.loss_of(part) / len(PARTS)
            loss.backward()
            total += loss.detach()
        return total

    def optimizer(self, name: str, **options: Any) -> crsam.SharpnessAware:
        base = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        return METHODS[name](base, model=self.model, **options)

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


CLOSURES: dict[str, Callable[[Problem], Any]] = {
    "in the closure": lambda p: p.in_the_closure,
    "micro-batches": lambda p: crsam.MicroBatches(p.loss_of, PARTS),
    "samples": lambda p: crsam.PerSample(p.losses, 64, accumulate=4),
}


@every_method
@pytest.mark.parametrize("how", CLOSURES)
def test_accumulating_4_times_16_equals_64_at_once(how: str, name: str) -> None:
    whole, cut = Problem(), Problem()
    opt, other = whole.optimizer(name), cut.optimizer(name)
    if how != "samples" and any(p.needs_samples for p in (opt.ascent, opt.objective, opt.schedule)):
        pytest.skip("looks at single samples")
    for _ in range(5):
        loss = opt.step(crsam.PerSample(whole.losses, 64))
        torch.testing.assert_close(other.step(CLOSURES[how](cut)), loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(cut.weights(), whole.weights(), rtol=0, atol=1e-12)
    assert opt.report.keys() == other.report.keys()


def test_each_micro_batch_climbs_on_its_own() -> None:
    """m-SAM, written out: the mean of what SAM follows on each."""
    problem, plain = Problem(), Problem()
    opt = problem.optimizer("sam", rho=0.3, scope="micro")
    params = list(plain.model.parameters())
    follow = [torch.zeros_like(p) for p in params]
    for part in PARTS:
        climb = torch.autograd.grad(plain.loss_of(part), params)
        norm = torch.cat([g.flatten() for g in climb]).norm()
        with torch.no_grad():
            for p, g in zip(params, climb):
                p += 0.3 * g / norm
        for total, g in zip(follow, torch.autograd.grad(plain.loss_of(part), params)):
            total += g / 4
        with torch.no_grad():
            for p, g in zip(params, climb):
                p -= 0.3 * g / norm
    opt.step(crsam.MicroBatches(problem.loss_of, PARTS))
    for p, q, g in zip(problem.model.parameters(), params, follow):
        torch.testing.assert_close(p, q - 0.1 * g, rtol=0, atol=1e-12)


@every_method
def test_micro_batches_as_samples_climb_the_same(name: str) -> None:
    found = []
    for how in ("micro-batches", "samples"):
        problem = Problem()
        opt = problem.optimizer(name, scope="micro")
        if any(p.needs_samples for p in (opt.ascent, opt.objective, opt.schedule)):
            pytest.skip("looks at single samples")
        for _ in range(4):
            loss = opt.step(CLOSURES[how](problem))
            assert opt.report["loss"].item() == pytest.approx(loss.item())
        found.append(problem.weights())
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@every_method
def test_one_micro_batch_that_climbs_on_its_own_is_the_batch(name: str) -> None:
    found = []
    for scope in ("batch", "micro", "rank"):
        problem = Problem()
        opt = problem.optimizer(name, scope=scope)
        for _ in range(4):
            opt.step(crsam.PerSample(problem.losses, 64))
        found.append(problem.weights())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_micro_batches_of_unequal_size_are_weighed() -> None:
    whole, cut = Problem(), Problem()
    parts = [slice(0, 40), slice(40, 60), slice(60, 64)]
    whole.optimizer("crsam-linear").step(crsam.PerSample(whole.losses, 64))
    closure = crsam.MicroBatches(cut.loss_of, parts, weights=[40, 20, 4])
    cut.optimizer("crsam-linear").step(closure)
    torch.testing.assert_close(cut.weights(), whole.weights(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scope", ["batch", "micro"])
def test_batch_norm_moves_once_for_each_micro_batch(scope: str) -> None:
    model, plain = problems.conv_net(), problems.conv_net()
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), warmup=0, model=model, scope=scope)  # type: ignore[arg-type]
    parts = list(problems.batches(3))
    torch.manual_seed(0)
    for x, _ in parts:
        plain(x)
    torch.manual_seed(0)
    opt.step(crsam.MicroBatches(lambda part: F.cross_entropy(model(part[0]), part[1]), parts))
    for ours, theirs in zip(model.buffers(), plain.buffers()):
        torch.testing.assert_close(ours, theirs)


def test_clipping_sees_the_accumulated_surrogate() -> None:
    for scope in ("batch", "micro"):
        problem = Problem()
        opt = problem.optimizer("sam", scope=scope, max_norm=1e-3)
        opt.step(crsam.MicroBatches(problem.loss_of, PARTS))
        grads = [p.grad for p in problem.model.parameters() if p.grad is not None]
        assert torch.cat([g.flatten() for g in grads]).norm().item() == pytest.approx(1e-3)


def test_what_cannot_be_cut_is_refused() -> None:
    problem = Problem()
    opt = problem.optimizer("sam", scope="micro")
    with pytest.raises(TypeError, match=r"use opt\.step\(crsam\.MicroBatches"):
        opt.step(problem.in_the_closure)
    with pytest.raises(UserError, match="at least one micro-batch"):
        crsam.MicroBatches(problem.loss_of, [])
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0]):
        with pytest.raises(UserError, match="weights must be 2 numbers"):
            crsam.MicroBatches(problem.loss_of, PARTS[:2], weights)
    with pytest.raises(UserError, match="accumulate must be between 1 and the 64 samples, got 65"):
        crsam.PerSample(problem.losses, 64, accumulate=65)
    with pytest.raises(RuntimeError, match=r"must return the mean loss .* got \(16,\)"):
        opt.step(crsam.MicroBatches(problem.losses, PARTS))
    with pytest.raises(ValueError, match="scope must be one of 'batch', 'rank', 'micro'"):
        problem.optimizer("sam", scope="global")
    with pytest.raises(TypeError, match=r"crsam\.PerSample"):
        problem.optimizer("esam").step(crsam.MicroBatches(problem.loss_of, PARTS))


@pytest.mark.parametrize("name", ["friendlysam", "aesam", "crsam-every", "looksam"])
def test_what_micro_batches_remember_is_weighed_too(name: str) -> None:
    """The same micro-batch three times over, whatever the weights, is that micro-batch."""
    found = []
    for parts, weights in ((PARTS[:1], [1.0]), (PARTS[:1] * 3, [0.5, 0.3, 0.2])):
        problem = Problem()
        opt = problem.optimizer(name, scope="micro")
        for _ in range(5):
            opt.step(crsam.MicroBatches(problem.loss_of, parts, weights))
        found.append(problem.weights())
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_a_micro_batch_without_weight_is_left_alone() -> None:
    problem, alone = Problem(), Problem()
    problem.x[PARTS[1]] = torch.nan
    closure = crsam.MicroBatches(problem.loss_of, PARTS[:2], [1.0, 0.0])
    problem.optimizer("sam", scope="micro").step(closure)
    alone.optimizer("sam").step(crsam.MicroBatches(alone.loss_of, PARTS[:1]))
    assert torch.equal(problem.weights(), alone.weights())
