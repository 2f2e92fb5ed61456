"""SAF and MESA against their formulas."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import crsam


def kl_term(past: Tensor, now: Tensor, lam: float, tau: float) -> Tensor:
    p, q = (past / tau).softmax(-1), (now / tau).softmax(-1)
    return lam * tau**2 * (p * (p.log() - q.log())).sum(-1).mean()


def test_saf_compares_each_sample_with_itself_lag_epochs_ago() -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 10, 3)  # epoch, sample, class
    targets = torch.randint(3, (10,))
    saf = crsam.SAF(10, 3, lam=0.3, tau=5.0, lag=3, start=5)
    for epoch in range(9):
        for indices in torch.randperm(10).split(4):
            now = logits[epoch, indices].requires_grad_()
            loss = saf(now, targets[indices], indices)
            expected = F.cross_entropy(now, targets[indices])
            if epoch >= 5:
                expected = expected + kl_term(logits[epoch - 3, indices], now, 0.3, 5.0)
            torch.testing.assert_close(loss, expected)
            (got,) = torch.autograd.grad(loss, now)
            (want,) = torch.autograd.grad(expected, now)
            torch.testing.assert_close(got, want)
        if epoch == 6:  # a checkpoint carries the history and the epoch
            state = copy.deepcopy(saf.state_dict())
            saf = crsam.SAF(10, 3, lam=0.3, tau=5.0, lag=3, start=5)
            saf.load_state_dict(state)
        saf.next_epoch()


def test_saf_leaves_out_samples_it_did_not_see_lag_epochs_ago() -> None:
    saf = crsam.SAF(4, 3, lag=3, start=3)
    logits, targets = torch.tensor([[5.0, 0, 0]] * 4), torch.zeros(4).long()
    for epoch in range(3):
        seen = torch.arange(3 if epoch == 0 else 4)
        saf(logits[seen], targets[seen], seen)
        saf.next_epoch()
    loss = saf(logits, targets, torch.arange(4))
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets))


def test_saf_in_evaluation_mode_remembers_nothing() -> None:
    saf = crsam.SAF(4, 2).eval()
    saf(torch.ones(2, 2), torch.zeros(2).long(), torch.arange(2))
    assert not saf.history.any()


def test_saf_under_sam_keeps_the_logits_of_the_unperturbed_weights() -> None:
    model, saf = nn.Linear(3, 2), crsam.SAF(4, 2)
    x, y, indices = torch.randn(4, 3), torch.zeros(4).long(), torch.arange(4)
    opt = crsam.SAM(
        torch.optim.SGD(model.parameters(), lr=0.1), rho=1.0, model=nn.ModuleList([model, saf])
    )
    expected = model(x).detach()

    def closure() -> Tensor:
        opt.zero_grad()
        loss: Tensor = saf(model(x), y, indices)
        loss.backward()
        return loss

    opt.step(closure)
    assert torch.equal(saf.history[0], expected)


def test_mesa_compares_with_the_mean_of_the_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    mesa = crsam.MESA(model, lam=0.3, tau=5.0, decay=0.9, start=1)
    mean = copy.deepcopy(model)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(4):
        opt.zero_grad()
        loss = mesa(model(x), y, x)
        expected = F.cross_entropy(model(x), y)
        if epoch >= 1:
            expected = expected + kl_term(mean(x).detach(), model(x), 0.3, 5.0)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        opt.step()
        mesa.update(model)
        with torch.no_grad():
            for m, p in zip(mean.parameters(), model.parameters()):
                m.copy_(0.9 * m + 0.1 * p)
        mesa.next_epoch()
    restored = crsam.MESA(nn.Linear(4, 3), start=1)
    restored.load_state_dict(mesa.state_dict())
    assert restored.epoch == 4
    torch.testing.assert_close(restored.mean_model.weight, mean.weight)


def test_mesa_mean_model_has_the_models_batch_norm_statistics_and_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    mesa = crsam.MESA(model)
    model(torch.randn(8, 4))
    mesa.update(model)
    for kept, buffer in zip(mesa.mean_model.buffers(), model.buffers()):
        assert torch.equal(kept, buffer)
    assert not any(p.requires_grad for p in mesa.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: crsam.SAF(0, 3), "num_samples"),
        (lambda: crsam.SAF(4, 3, lam=-1.0), "lam must not be negative"),
        (lambda: crsam.SAF(4, 3, tau=0.0), "tau must be above 0"),
        (lambda: crsam.SAF(4, 3, lag=3, start=2), "start must be a whole number of at least 3"),
        (lambda: crsam.MESA(nn.Linear(2, 2), decay=1.5), "decay must be between 0 and 1"),
    ],
)
def test_bad_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
