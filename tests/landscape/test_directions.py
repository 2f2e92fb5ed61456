"""Directions: against a loop that a textbook would print, and with what breaks others."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from crsam import landscape
from crsam.errors import UserError


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.LayerNorm([4, 4]),  # a norm whose weights have two dimensions
        nn.Flatten(),
        nn.Linear(64, 3),
    ).double()


def test_every_filter_of_a_direction_is_as_long_as_the_models() -> None:
    model = net()
    for direction in landscape.random_directions(model, seed=3):
        assert set(direction) == {"0.weight", "4.weight"}
        for name, step in direction.items():
            weight = model.get_parameter(name)
            for k in range(len(weight)):
                ours, theirs = (sum(v * v for v in t[k].flatten().tolist()) for t in (step, weight))
                assert math.sqrt(ours) == pytest.approx(math.sqrt(theirs), rel=1e-12)


def test_directions_are_gaussian_draws_scaled_filter_by_filter() -> None:
    """Within a filter the first direction is a multiple of the draw, which two models share."""
    a, b = (landscape.random_directions(net(seed))[0] for seed in (0, 1))
    for name in a:
        for ours, theirs in zip(a[name].flatten(1), b[name].flatten(1)):
            cosine = torch.dot(ours, theirs) / (ours.norm() * theirs.norm())
            assert cosine.item() == pytest.approx(1, abs=1e-12)
    values = a["4.weight"] / a["4.weight"].norm(dim=1, keepdim=True) * 8
    assert values.mean().abs() < 0.2
    assert values.pow(4).mean().item() == pytest.approx(3, abs=1)  # not signs, not uniform


def test_directions_are_orthogonal_as_a_whole_and_filter_by_filter() -> None:
    first, second = landscape.random_directions(net().float())
    for name in first:
        products = (first[name] * second[name]).flatten(1).sum(1)
        assert products.abs().max() < 1e-5


def test_seeds_and_numbers_give_other_directions() -> None:
    model = net()
    (a,), (b,), (again,) = (landscape.random_directions(model, 1, seed=s) for s in (0, 1, 0))
    assert torch.equal(a["0.weight"], again["0.weight"])
    assert not torch.allclose(a["0.weight"], b["0.weight"])
    assert torch.equal(a["0.weight"], landscape.random_directions(model, 2)[0]["0.weight"])


def test_filters_that_are_zero_or_of_one_weight_are_safe() -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[1].weight[0] = 0
    first, second = landscape.random_directions(model)
    assert all(step.isfinite().all() for d in (first, second) for step in d.values())
    assert first["1.weight"][0].count_nonzero() == 0
    torch.testing.assert_close(first["0.weight"].abs(), model[0].weight.abs())
    assert second["0.weight"].count_nonzero() == 0  # there is no other direction on a line


def test_frozen_parameters_stay_and_a_model_without_filters_is_told() -> None:
    model = net()
    model[0].requires_grad_(False)
    assert set(landscape.random_directions(model, 1)[0]) == {"4.weight"}
    with pytest.raises(UserError, match="no weights of two or more dimensions"):
        landscape.random_directions(nn.BatchNorm1d(3))


def test_toward_leads_to_the_other_model_buffers_included() -> None:
    a, b = net(0), net(1)
    b(torch.randn(5, 2, 6, 6).double())  # moves the statistics
    direction = landscape.toward(a, b)
    state = a.state_dict()
    assert set(direction) == {name for name in state if "num_batches" not in name}
    for name, step in direction.items():
        torch.testing.assert_close(state[name] + step, b.state_dict()[name], rtol=0, atol=1e-15)
    with pytest.raises(UserError, match=r"4.weight is \(3, 64\) in one and \(5, 64\)"):
        landscape.toward(a, nn.Sequential(*net()[:4], nn.Linear(64, 5)))


def test_plane_goes_through_all_three_models() -> None:
    models = [net(seed) for seed in range(3)]
    (first, second), places = landscape.plane(*models)
    assert places[:2] == ((0.0, 0.0), (1.0, 0.0))

    def inner(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        names = [name for name, _ in models[0].named_parameters()]
        return sum((a[name] * b[name]).sum().item() for name in names)

    assert inner(first, second) == pytest.approx(0, abs=1e-9)
    assert inner(first, first) == pytest.approx(inner(second, second))
    for model, (x, y) in zip(models, places):
        for name, p in model.named_parameters():
            there = models[0].get_parameter(name) + x * first[name] + y * second[name]
            torch.testing.assert_close(there, p, rtol=0, atol=1e-12)


def test_no_plane_through_models_on_one_line() -> None:
    a, b = net(0), net(1)
    middle = copy.deepcopy(a)
    with torch.no_grad():
        for m, p, q in zip(middle.parameters(), a.parameters(), b.parameters()):
            m.copy_((p + q) / 2)
    for three in ((a, b, middle), (a, a, b), (a, b, a), (a, b, b)):
        with pytest.raises(UserError, match="on one line"):
            landscape.plane(*three)
