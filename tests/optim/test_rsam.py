"""R-SAM after its authors' code: two passes, none at w, with sigma and rho by schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

import crsam
import problems
from crsam.optim import Curvature, EveryK, Random


def passes_of(opt: crsam.SharpnessAware, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of each pass of one step; the loss of each, and what the step returned."""
    (x, y), *_ = problems.batches(1)
    places, losses = [], []

    def closure() -> Tensor:
        places.append(vector(model))
        opt.zero_grad()
        loss = problems.cross_entropy(model(x), y).mean()
        loss.backward()
        losses.append(loss.detach())
        return loss

    losses.append(opt.step(closure))
    return places, losses


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_it_takes_two_passes_and_none_at_w() -> None:
    model = problems.conv_net()
    w = vector(model)
    opt = crsam.RSAM(SGD(model.parameters(), lr=0.05), rho=0.1, sigma=0.01, model=model)
    places, (first, second, returned) = passes_of(opt, model)
    assert len(places) == 2
    assert all((place - w).norm() > 1e-3 for place in places)
    torch.testing.assert_close((places[1] - w).norm(), torch.tensor(0.1).double())
    assert torch.equal(returned, first)
    assert torch.equal(opt.report["loss"], first)
    assert torch.equal(opt.report["loss_plus"], second)
    assert "sharpness" not in opt.report  # nobody knows the loss at w


@pytest.mark.parametrize(
    ("parts", "num_passes"),
    [
        ((Curvature(0.5, 0.1, form="linear"), None), 4),
        ((None, EveryK(1, reuse=0.5)), 3),
    ],
)
def test_a_part_that_needs_the_gradient_at_w_gets_the_pass_at_w(
    parts: tuple[Any, Any], num_passes: int
) -> None:
    model = problems.conv_net()
    w = vector(model)
    base = SGD(model.parameters(), lr=0.05)
    opt = crsam.SharpnessAware(base, Random(sigma=0.01), *parts, model=model)
    places, _ = passes_of(opt, model)
    assert len(places) == num_passes
    assert torch.equal(places[0], w)
    assert "sharpness" in opt.report


def test_sigma_rises_over_training_as_in_the_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_draws(device: torch.device | str, stream: int, seed: int) -> torch.Generator:
        return torch.Generator(device).manual_seed(7)

    monkeypatch.setattr("crsam.optim.optimizer.new_generator", same_draws)
    model = problems.conv_net()
    opt = crsam.RSAM(SGD(model.parameters(), lr=0.0), rho=0.0, total_steps=6, model=model)
    w, lengths = vector(model), []
    for _ in range(8):
        places, _ = passes_of(opt, model)
        lengths.append((places[0] - w).norm())
    # Their CosineInc(0.0005, 1, total, 5 - 1), from step 1 on.
    rise = [(-math.cos(min(t, 6) * math.pi / 6) * 0.5 + 0.5) * 4 + 1 for t in range(1, 9)]
    assert rise[-1] == 5
    expected = torch.tensor(rise).double() / rise[0]
    torch.testing.assert_close(torch.stack(lengths) / lengths[0], expected)


def test_sigma_lives_in_the_groups() -> None:
    model = problems.conv_net()
    params = list(model.parameters())
    groups = [{"params": params[:2], "sigma": 0.0}, {"params": params[2:]}]
    opt = crsam.RSAM(SGD(groups, lr=0.05), sigma=0.01, model=model)
    w, num = vector(model), sum(p.numel() for p in params[:2])
    (first, _), _ = passes_of(opt, model)
    assert torch.equal(first[:num], w[:num])
    assert not torch.equal(first[num:], w[num:])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_rho_follows_the_learning_rate_down_to_its_share() -> None:
    model = problems.conv_net()
    opt = crsam.RSAM(SGD(model.parameters(), lr=0.05), rho=2.5, model=model)
    scheduler = LambdaLR(opt, lambda step: [1.0, 0.5, 0.0][min(step, 2)])
    radii = []
    for _ in range(3):
        w = vector(model)
        places, _ = passes_of(opt, model)
        radii.append((places[1] - w).norm().item())
        scheduler.step()
    assert radii == pytest.approx([2.5, 2.0, 1.5])


def test_its_defaults_are_those_of_the_authors_code() -> None:
    opt = crsam.RSAM(SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    assert isinstance(opt.ascent, Random)
    assert (opt.ascent.sigma, opt.ascent.sigma_rise, opt.ascent.lam) == (0.0005, 5.0, 2.0)
    assert opt.follow is not None
    assert opt.follow.rho_min == 1.5 / 2.5


@pytest.mark.parametrize("wrong", [{"sigma_rise": -1.0}, {"total_steps": 0}, {"rho_share": 1.5}])
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        crsam.RSAM(SGD([nn.Parameter(torch.zeros(1))], lr=0.1), **wrong)


def test_only_steps_without_a_pass_at_the_weights_start_elsewhere() -> None:
    def starts_at_weights(*parts: Any) -> bool:
        base = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        return crsam.SharpnessAware(base, *parts).starts_at_weights

    assert not starts_at_weights(Random())
    assert starts_at_weights(Random(), Curvature())
    assert starts_at_weights(Random(), None, EveryK(3, reuse=0.5))
    for method in crsam.methods():
        opt = crsam.make(method, SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
        assert opt.starts_at_weights is (method != "rsam")
