"""Surfaces against what is known of them: a bowl, a plain loop, one batch for many."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import problems
from crsam import landscape
from crsam.errors import UserError


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def losses_and_right(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    return F.cross_entropy(logits, batch[1], reduction="none"), logits.argmax(1) == batch[1]


def data(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return [(x[:n], y[:n]) for (x, y), n in zip(problems.batches(len(sizes)), sizes)]


class Bowl(nn.Module):
    """``(w − c)ᵀ A (w − c) / 2``."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        root = torch.randn(6, 6, dtype=torch.float64, generator=g)
        self.A, self.c = root @ root.T, torch.randn(6, dtype=torch.float64, generator=g)
        self.w = nn.Parameter(torch.randn(6, dtype=torch.float64, generator=g))

    def forward(self, ones: Tensor) -> Tensor:
        off = self.w - self.c
        return off @ self.A @ off / 2 * ones.mean()


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_bowl_has_the_surface_that_its_formula_gives(at_once: int) -> None:
    model = Bowl()
    d, e = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x, y = np.array([-2.0, -0.3, 0.0, 1.7, 40.0]), np.array([-1.0, 0.0, 0.6])
    found = landscape.surface(
        model,
        lambda m, ones: m(ones),
        torch.ones(3, dtype=torch.float64),
        directions=[{"w": d}, {"w": e}],
        x=x,
        y=y,
        at_once=at_once,
    )
    assert found.loss.shape == (3, 5)
    A, off = model.A.numpy(), (model.w - model.c).detach().numpy()
    for i, b in enumerate(y):
        for j, a in enumerate(x):
            z = off + a * d.numpy() + b * e.numpy()
            assert found.loss[i, j] == pytest.approx(z @ A @ z / 2, rel=1e-12)
    assert found.accuracy is None
    assert found.complete


def test_every_point_is_what_a_plain_loop_finds() -> None:
    """The weights set by hand, one after the other; unequal batches, accuracy in per cent."""
    model, batches = problems.conv_net(), data(5, 16, 9)
    directions = landscape.random_directions(model, seed=2)
    x = [-1.0, 0.0, 0.5]
    found = landscape.surface(model, losses_and_right, batches, x=x, y=[-0.2, 0.4], seed=2)
    whole = tuple(torch.cat(parts) for parts in zip(*batches))
    for i, b in enumerate([-0.2, 0.4]):
        for j, a in enumerate(x):
            moved = copy.deepcopy(model).eval()
            for name, p in moved.named_parameters():
                for factor, direction in zip((a, b), directions):
                    if name in direction:
                        p.data += factor * direction[name]
            losses, right = losses_and_right(moved, whole)
            assert found.loss[i, j] == pytest.approx(losses.mean().item(), rel=1e-12)
            expected = 100 * right.double().mean().item()
            assert found.accuracy is not None
            assert found.accuracy[i, j] == pytest.approx(expected, rel=1e-12)


def test_a_mean_a_loader_and_a_single_batch_give_the_same() -> None:
    model, (x, y) = problems.conv_net(), data(16)[0]
    model[3].p = 0.9  # dropout that would be seen if it were on
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True, generator=generator)
    expected = landscape.surface(model, losses_and_right, [(x, y)], directions=1, x=[-0.5, 0, 1])
    for batches in (loader, (x, y), iter([(x[:3], y[:3]), (x[3:], y[3:])])):
        found = landscape.surface(model, mean_loss, batches, directions=1, x=[-0.5, 0, 1])
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-12)
        assert found.loss.shape == (3,)
        assert found.y is None
    assert torch.equal(generator.get_state(), state)


def test_several_points_at_once_give_what_single_ones_give() -> None:
    model, batches = problems.conv_net(), data(5, 9)
    one, many = (
        landscape.surface(model, losses_and_right, batches, x=[-1, 0, 0.5], at_once=n)
        for n in (1, 4)  # nine points: the last part is not full
    )
    np.testing.assert_allclose(many.loss, one.loss, rtol=1e-10)
    np.testing.assert_allclose(many.accuracy, one.accuracy)


def test_recomputed_batch_norm_takes_its_statistics_at_every_point() -> None:
    model, batches = problems.conv_net(), data(16, 16)
    (direction,) = landscape.random_directions(model, 1)
    found = landscape.surface(
        model, mean_loss, batches, directions=[direction], x=[0, 0.8], batch_norm="recomputed"
    )
    for k, a in enumerate((0, 0.8)):
        moved = copy.deepcopy(model).eval()
        with torch.no_grad():
            for name, step in direction.items():
                moved.get_parameter(name).add_(step, alpha=a)
        for layer in (moved[1], moved[5]):
            layer.reset_running_stats()
            layer.momentum = None  # the mean over batches, which here are of one size
            layer.train()
        with torch.no_grad():
            for x, _ in batches:
                moved(x)
        moved.eval()
        expected = sum(mean_loss(moved, batch).item() for batch in batches) / 2
        assert found.loss[k] == pytest.approx(expected, rel=1e-12)


def test_recomputed_batch_norm_does_not_see_the_scale_of_filters() -> None:
    """A filter before batch norm scaled by itself: with old statistics the loss moves."""
    model, batches = problems.conv_net(), data(16)
    model.train()
    model(batches[0][0])
    direction = {"0.weight": model[0].weight.detach(), "4.weight": model[4].weight.detach()}

    def losses(batch_norm: Any) -> Any:
        return landscape.surface(
            model, mean_loss, batches, directions=[direction], x=[0, 1], batch_norm=batch_norm
        ).loss

    recomputed, running = losses("recomputed"), losses("running")
    assert recomputed[1] == pytest.approx(recomputed[0], rel=1e-3)
    assert abs(running[1] / running[0] - 1) > 0.02


def test_a_loss_that_is_no_number_is_infinite_and_the_rest_is_there() -> None:
    def loss(model: nn.Module, ones: Tensor) -> Tensor:
        value = model(ones)
        return torch.where(value > 100, torch.nan, value)

    model = Bowl()
    found = landscape.surface(
        model, loss, torch.ones(1).double(), directions=[{"w": torch.ones(6)}], x=[-50, 0, 50]
    )
    assert np.isinf(found.loss).tolist() == [True, False, True]
    assert found.complete


def test_default_grid_has_the_weights_themselves_in_its_middle() -> None:
    model = Bowl()
    found = landscape.surface(
        model, lambda m, x: m(x), torch.ones(1).double(), directions=[{"w": torch.ones(6)}]
    )
    assert len(found.x) == 51
    assert found.x[25] == 0
    assert found.loss[25] == model(torch.ones(1)).item()
    assert (found.x[0], found.x[-1]) == (-1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": 3}, "one or two directions, got 3"),
        ({"directions": [{"v": torch.ones(6)}]}, "names 'v', which the model does not have"),
        ({"directions": [{"w": torch.ones(5)}]}, r"w is \(5,\), and \(6,\) in the model"),
        ({"directions": [{"w": torch.full((6,), torch.inf)}]}, "not finite: w"),
        ({"directions": [{}]}, "a direction is empty"),
        ({"directions": [{"w": torch.ones(6)}], "y": [0]}, "one direction only"),
        ({"x": [0, 0]}, "x must rise"),
        ({"x": []}, "x must be a list of finite numbers"),
        ({"x": [0, torch.nan]}, "x must be a list of finite numbers"),
        ({"batch_norm": "batch"}, "'running' or 'recomputed', got 'batch'"),
        ({"at_once": 0}, "at_once must be 1"),
        ({"at_once": 2, "batch_norm": "recomputed"}, "at_once must be 1"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"directions": [{"w": torch.ones(6)}] * 2, **options}
    if given["directions"] == 3:
        given["directions"] = [{"w": torch.ones(6)}] * 3
    with pytest.raises(UserError, match=message):
        landscape.surface(Bowl(), lambda m, x: m(x), torch.ones(1), **given)


def test_batches_and_losses_that_are_none_are_told() -> None:
    directions = [{"w": torch.ones(6)}]
    for batches, message in (([], "batches is empty"), (3, "must be a list of batches")):
        with pytest.raises(UserError, match=message):
            landscape.surface(Bowl(), lambda m, x: m(x), batches, directions=directions)
    with pytest.raises(UserError, match="loss_fn must return a tensor"):
        landscape.surface(Bowl(), lambda m, x: 1.0, torch.ones(1), directions=directions)
    with pytest.raises(UserError, match=r"float32 or float64, but w is torch.bfloat16"):
        landscape.surface(
            Bowl().bfloat16(), lambda m, x: m(x), torch.ones(1), directions=directions
        )


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_is_gone_over_in_one_order_and_leaves_random_states_alone(
    shuffle: bool, tmp_path: Path
) -> None:
    samples = TensorDataset(*next(problems.batches(1)))
    loader = DataLoader(samples, batch_size=3, shuffle=shuffle)
    model, before = problems.conv_net(), torch.get_rng_state()
    options: dict[str, Any] = {"directions": 1, "x": [0.0, 1.0], "file": tmp_path / "a.npz"}
    first = landscape.surface(model, mean_loss, loader, **options)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    again = landscape.surface(model, mean_loss, loader, **options)  # goes on from the file
    assert (again.loss == first.loss).all()


def test_a_compiled_model_is_looked_at_along_the_same_directions() -> None:
    model, batches = problems.conv_net(), data(5, 9)
    plain, compiled = (
        landscape.surface(m, mean_loss, batches, directions=1, x=[0.0, 1.0]).loss
        for m in (model, torch.compile(model, backend="eager"))
    )
    assert (plain == compiled).all()


class Wrapped(DistributedDataParallel):
    """What is looked at of it, without its processes."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


def test_wrapped_models_have_the_directions_of_those_within() -> None:
    models = [problems.conv_net(seed=seed) for seed in range(3)]
    wrapped = [Wrapped(model) for model in models]
    plain, found = (
        landscape.surface(m, mean_loss, data(5), directions=1, x=[0.0, 1.0]).loss
        for m in (models[0], wrapped[0])
    )
    assert (plain == found).all()
    assert landscape.toward(*wrapped[:2]).keys() == landscape.toward(*models[:2]).keys()
    assert landscape.plane(*wrapped).places == landscape.plane(*models).places


def test_another_loss_function_does_not_go_on_from_a_file(tmp_path: Path) -> None:
    def smoothed(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.3)

    options: dict[str, Any] = {"directions": 1, "x": [0.0, 1.0], "file": tmp_path / "a.npz"}
    landscape.surface(problems.conv_net(), mean_loss, data(5, 9), **options)
    with pytest.raises(UserError, match=r"another landscape \(a loss of"):
        landscape.surface(problems.conv_net(), smoothed, data(5, 9), **options)
