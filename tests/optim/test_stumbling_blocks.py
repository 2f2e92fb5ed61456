"""What people stumble on with other libraries, one test an item, by its number on the list.

What a test here does with a few methods, others do with all of them: see the names that each gives.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import crsam
import problems

few_methods = pytest.mark.parametrize("method", ["sam", "crsam", "looksam", "friendlysam"])


def made(method: str, model: nn.Module, **options: Any) -> crsam.SharpnessAware:
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return crsam.make(method, base, model=model, **options)


def steps(model: nn.Module, opt: crsam.SharpnessAware, first: int, last: int) -> list[float]:
    losses = []
    for t, (x, y) in enumerate(list(problems.batches(last))[first:], start=first):
        torch.manual_seed(t)
        losses.append(opt.step(problems.closure_of(model, opt, x, y)).item())
    return losses


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values())
    return all(torch.equal(a, b) for a, b in pairs)


@few_methods
def test_1_checkpoints_hold_the_base_optimizers_moments(method: str) -> None:
    model = problems.conv_net()
    opt = crsam.make(method, Adam(model.parameters(), lr=0.01), model=model)
    steps(model, opt, 0, 3)
    other = copy.deepcopy(model)
    resumed = crsam.make(method, Adam(other.parameters(), lr=0.5), model=other)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert steps(model, opt, 3, 7) == steps(other, resumed, 3, 7)
    assert same(model, other)


@few_methods
def test_2_a_step_needs_no_backward_before_it_and_never_becomes_sgd(method: str) -> None:
    model = problems.conv_net()
    opt = made(method, model)
    with pytest.raises(TypeError, match="needs a closure"):
        opt.step()
    (x, y), *_ = problems.batches(1)
    F.cross_entropy(model(x), y).backward()  # as the usual loop would
    before = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match=r"call loss\.backward\(\)"):
        opt.step(lambda: F.cross_entropy(before(x), y))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters()))
    calls = []
    opt.step(lambda: calls.append(1) or problems.closure_of(model, opt, x, y)())  # type: ignore[func-returns-value]
    assert len(calls) == {"crsam": 3}.get(method, 2)


@few_methods
def test_3_an_fp16_overflow_skips_the_step_and_restores_the_weights(method: str) -> None:
    """All methods and passes: test_scaler.py; several ranks: test_distributed.py."""
    model = problems.conv_net(torch.float32)
    opt = made(method, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    before = copy.deepcopy(model)
    (x, y), *_ = problems.batches(1, torch.float32)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * 1e30).backward()
        return loss

    opt.step(closure, scaler=scaler)
    scaler.update()
    assert same(model, before)
    assert not opt.state
    assert scaler.get_scale() == 2.0**99


@few_methods
def test_4_accumulation_clipping_and_averages_of_weights(method: str) -> None:
    """All methods: test_accumulation.py, and test_battery.py for clipping and averages."""
    nets = []
    for parts in ([slice(0, 16)], [slice(0, 8), slice(8, 16)]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double()
        opt = made(method, model, max_norm=0.1)
        average = torch.optim.swa_utils.AveragedModel(model)
        for x, y in problems.batches(3):
            opt.step(
                crsam.MicroBatches(
                    lambda part, model=model, x=x, y=y: F.cross_entropy(model(x[part]), y[part]),
                    parts,
                )
            )
            grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            assert torch.cat(grads).norm() <= 0.1 + 1e-12
            average.update_parameters(model)
        nets.append(average.module)
    for a, b in zip(nets[0].parameters(), nets[1].parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@few_methods
def test_5_gradients_kept_from_an_earlier_pass_are_copies(method: str) -> None:
    """Replicas, their bucket views and the scope of the perturbation: test_distributed.py."""
    nets = []
    for shared in (False, True):
        model = problems.conv_net()
        memory = {p: torch.zeros_like(p) for p in model.parameters()}

        def into_memory(p: Tensor, memory: dict[Any, Tensor] = memory) -> None:
            p.grad = memory[p].copy_(p.grad)  # type: ignore[arg-type]

        for p in model.parameters():
            if shared:
                p.register_post_accumulate_grad_hook(into_memory)
        steps(model, made(method, model), 0, 4)
        nets.append(model)
    assert same(*nets)


@few_methods
def test_6_weights_are_moved_and_put_back_in_place(method: str) -> None:
    """``p.data = …`` is what goes wrong under FSDP2; sharded weights: test_distributed.py."""
    model = problems.conv_net()
    memory = [p.data_ptr() for p in model.parameters()]
    seen: list[list[int]] = []
    opt = made(method, model)
    (x, y), *_ = problems.batches(1)

    def closure() -> Tensor:
        seen.append([p.data_ptr() for p in model.parameters()])
        return problems.closure_of(model, opt, x, y)()

    opt.step(closure)
    assert all(pointers == memory for pointers in seen)
    assert [p.data_ptr() for p in model.parameters()] == memory


@few_methods
def test_7_batch_norm_moves_once_and_dropout_masks_are_one(method: str) -> None:
    model, plain = problems.conv_net(), problems.conv_net()  # one has momentum=None
    (x, y), *_ = problems.batches(1)
    torch.manual_seed(0)
    plain(x)
    torch.manual_seed(0)
    opt = made(method, model)
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        loss = problems.closure_of(model, opt, x, y)()
        if passes == 2:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    for ours, theirs in zip(model.buffers(), plain.buffers()):
        assert torch.equal(ours, theirs)


@few_methods
def test_8_weights_are_restored_exactly_also_when_the_closure_raises(method: str) -> None:
    (x, y), *_ = problems.batches(1, torch.bfloat16)
    for bad_pass in (1, 2):
        model = problems.conv_net(torch.bfloat16)
        opt, before = made(method, model), copy.deepcopy(list(model.parameters()))
        passes = 0

        def closure(bad_pass: int = bad_pass, model: nn.Module = model, opt: Any = opt) -> Tensor:
            nonlocal passes
            passes += 1
            if passes == bad_pass:
                raise KeyboardInterrupt
            return problems.closure_of(model, opt, x, y)()

        with pytest.raises(KeyboardInterrupt):
            opt.step(closure)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))


@few_methods
def test_9_a_parameter_with_a_gradient_in_one_pass_and_none_in_another(method: str) -> None:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    opt = crsam.make(method, SGD([a, b], lr=0.1))
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        opt.zero_grad()
        loss = a.square().sum() + (b.square().sum() if passes > 1 else 0.0)
        loss.backward()
        return loss

    opt.step(closure)
    assert a.isfinite().all()
    assert (b < 1).all()


@few_methods
def test_10_schedulers_and_hyper_parameters_of_groups(method: str) -> None:
    """Without a warning: here they are errors."""
    model = problems.conv_net()
    layers = [{"params": model[0].parameters()}, {"params": model[8].parameters(), "rho": 0.3}]
    opt = crsam.make(method, SGD(layers, lr=0.1), rho=0.1, model=model)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    steps(model, opt, 0, 1)
    scheduler.step()
    assert [g["lr"] for g in opt.base.param_groups] == [0.05, 0.05]
    assert [g["rho"] for g in opt.param_groups] == [0.1, 0.3]


@few_methods
def test_11_the_loss_is_that_of_the_weights_and_not_added_up(method: str) -> None:
    model = problems.conv_net()
    opt = made(method, model)
    (x, y), *_ = problems.batches(1)
    torch.manual_seed(0)
    expected = F.cross_entropy(copy.deepcopy(model)(x), y).item()
    torch.manual_seed(0)
    assert opt.step(problems.closure_of(model, opt, x, y)).item() == expected
    assert opt.report["loss"].item() == expected
