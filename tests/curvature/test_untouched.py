"""Whatever is measured, the model and the random states are left as found, bit for bit."""

from __future__ import annotations

import copy
import random
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import crsam
import problems
from crsam import curvature
from curvature.functions import FUNCTIONS, LOSS, numbers

every_function = pytest.mark.parametrize("name", FUNCTIONS)
pytestmark = pytest.mark.filterwarnings("ignore:.*probes do not tell the trace")


def test_the_battery_covers_the_public_functions() -> None:
    functions = {name for name in curvature.__all__ if name[0].islower()}
    assert functions == {name.split(",")[0] for name in FUNCTIONS}


def net() -> nn.Sequential:
    """Batch norm and dropout in training, one layer in evaluation, one frozen, some gradients."""
    model = problems.conv_net()
    model[5].eval()
    model[4].weight.requires_grad_(False)
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(x[:n], y[:n]) for (x, y), n in zip(problems.batches(2), (5, 3))]


class World:
    """Everything that must not change."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.objects = self.parts()
        self.values = [None if t is None else t.clone() for t in self.objects]
        self.flags = self.settings()

    def parts(self) -> list[Tensor | None]:
        params = list(self.model.parameters())
        return [*params, *self.model.buffers(), *(p.grad for p in params)]

    def settings(self) -> list[Any]:
        key, state, *rest = np.random.get_state()  # noqa: NPY002
        return [
            [m.training for m in self.model.modules()],
            [p.requires_grad for p in self.model.parameters()],
            torch.get_rng_state().tolist(),
            random.getstate(),
            [key, state.tolist(), *rest],
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cudnn.allow_tf32,
            torch.get_float32_matmul_precision(),
        ]

    def check(self) -> None:
        for now, before, value in zip(self.parts(), self.objects, self.values, strict=True):
            assert now is before
            assert (now is None) == (value is None)
            if now is not None and value is not None:
                assert torch.equal(now, value)
        assert self.settings() == self.flags


@every_function
def test_leaves_everything_as_found(name: str) -> None:
    model = net()
    torch.manual_seed(5)
    world = World(model)
    FUNCTIONS[name](model, LOSS, batches())
    world.check()


@every_function
@pytest.mark.parametrize("failing_call", [0, 1, 2, 3])
def test_leaves_everything_as_found_after_an_exception(name: str, failing_call: int) -> None:
    model, calls = net(), 0

    def failing(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        loss = LOSS(model, batch)
        model.eval()
        torch.rand(1)
        if calls > failing_call:
            raise KeyboardInterrupt
        model.train()
        return loss

    world = World(model)
    with suppress(KeyboardInterrupt):  # some are done before it comes
        FUNCTIONS[name](model, failing, batches())
    assert calls > failing_call or failing_call > 1
    world.check()


@every_function
def test_is_the_same_whatever_the_callers_state(name: str) -> None:
    """Random states, no_grad, autocast and inference mode of the caller change nothing."""
    model, data = net(), batches()
    torch.manual_seed(0)
    expected = numbers(FUNCTIONS[name](model, LOSS, data))
    torch.manual_seed(1)
    random.seed(1)
    with torch.no_grad(), torch.autocast("cpu"):
        world = World(model)
        found = numbers(FUNCTIONS[name](model, LOSS, data))
        world.check()
    with torch.inference_mode():
        inside = numbers(FUNCTIONS[name](model, LOSS, data))
    assert found == inside == expected


@every_function
def test_generator_of_a_loader_is_left_as_found_after_an_exception(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = next(iter(problems.batches(1)))
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=generator)
    state = generator.get_state()

    def failing(model: nn.Module, batch: Any) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        FUNCTIONS[name](net(), failing, loader)
    assert torch.equal(generator.get_state(), state)
    del caught


def test_a_loss_that_is_a_module_is_left_as_found() -> None:
    """SAF remembers logits whenever it is called in training."""
    criterion = crsam.SAF(num_samples=8, num_classes=3).double()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.criterion = criterion

        def forward(self, model: nn.Module, batch: Any) -> Tensor:
            return self.criterion(model(batch[0]), batch[1], torch.arange(len(batch[1])))

    loss = Loss()
    world = World(loss)
    curvature.sharpness(net(), loss, batches())
    world.check()


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "per batch" not in name])
def test_a_shuffling_loader_gives_what_a_list_gives(name: str) -> None:
    """In evaluation mode, where the order cannot matter beyond rounding."""
    model = net().eval()
    x, y = next(iter(problems.batches(1)))
    data = TensorDataset(x[:7], y[:7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*probes do not tell the trace")
        expected = numbers(FUNCTIONS[name](model, LOSS, [(x[:7], y[:7])]))
        for generator in (None, torch.Generator().manual_seed(3)):
            loader = DataLoader(data, batch_size=3, shuffle=True, generator=generator)
            world = World(model)
            state = generator.get_state() if generator else None
            found = numbers(FUNCTIONS[name](model, LOSS, loader))
            world.check()
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-10)
            if generator and state is not None:
                assert torch.equal(generator.get_state(), state)


@every_function
def test_measures_only_parameters_that_require_a_gradient(name: str) -> None:
    """A frozen copy of a net in front changes nothing but the inputs."""
    torch.manual_seed(0)
    front, back = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    y = torch.arange(6) % 3
    whole = nn.Sequential(front.requires_grad_(False), nn.Tanh(), back)
    inside = torch.tanh(front(x)).detach()
    found = numbers(FUNCTIONS[name](whole, LOSS, [(x, y)]))
    expected = numbers(FUNCTIONS[name](back, LOSS, [(inside, y)]))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_weights_that_a_forward_pass_scales_down_are_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.5), nn.Flatten(), nn.Linear(6, 3))
    before = copy.deepcopy(model.state_dict())
    batch = (torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1]))
    curvature.gradient_norm(model, LOSS, [batch])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@every_function
def test_modules_that_are_there_twice_keep_their_weights(name: str) -> None:
    torch.manual_seed(0)
    model = problems.Twice().double()
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    values = {key: tensor.clone() for key, tensor in own.items()}
    some = [(torch.randn(5, 6, dtype=torch.float64), torch.randint(3, (5,)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FUNCTIONS[name](model, LOSS, some)
    for key, tensor in own.items():
        assert torch.equal(tensor, values[key])
    assert model.head.weight is own["head.weight"]
