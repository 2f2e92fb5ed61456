"""What went wrong once, or does in other libraries, and must not here."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import crsam
import problems
from crsam.optim import (
    Adaptive,
    ClosureProbe,
    Curvature,
    Offset,
    PartOfBatch,
    Random,
    RandomTensors,
    SharpnessAware,
)
from crsam.optim.replay import Replay


class Net:
    """A small net and its batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(16, 4), torch.randint(3, (16,))
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def sgd(self, **options: float) -> SGD:
        return SGD(self.model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})  # type: ignore[arg-type]

    def samples(self) -> crsam.PerSample:
        return problems.samples_of(self.model, self.x, self.y)


@pytest.mark.parametrize("method", ["sam", "crsam", "rsam"])
def test_autocast_around_the_step_sees_the_moved_weights(method: str) -> None:
    net = Net()
    opt = crsam.make(method, net.sgd(), rho=0.5, warmup=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        opt.step(net.samples())
        assert opt.report["loss_plus"] - opt.report["loss"] > 0.01
        after = F.cross_entropy(net.model(net.x), net.y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(after, F.cross_entropy(net.model(net.x), net.y))


def test_a_closure_may_return_the_same_accumulator_in_every_pass() -> None:
    net = Net()
    opt = crsam.CRSAM(net.sgd(), warmup=0)
    total = torch.zeros(())

    def closure() -> Tensor:
        opt.zero_grad()
        total.zero_()
        for part in (slice(0, 8), slice(8, 16)):
            loss = F.cross_entropy(net.model(net.x[part]), net.y[part]) / 2
            loss.backward()
            total.add_(loss.detach())
        return total

    expected = F.cross_entropy(net.model(net.x), net.y).item()
    loss = opt.step(closure)
    assert loss.item() == pytest.approx(expected)
    assert opt.report["sharpness"] > 0
    loss.mul_(100)
    assert opt.report["loss"].item() == pytest.approx(expected)


def test_a_closure_may_return_a_python_number() -> None:
    """Kept in float64: differences of losses need all its digits."""
    net = Net()
    net.model.double()
    net.x = net.x.double()
    opt = crsam.CRSAM(net.sgd(), rho=1e-4, warmup=0)
    opt.step(lambda: net.samples()().item())
    with_numbers = opt.report["curvature"].item()
    net = Net()
    net.model.double()
    net.x = net.x.double()
    opt = crsam.CRSAM(net.sgd(), rho=1e-4, warmup=0)
    opt.step(net.samples())
    assert with_numbers == pytest.approx(opt.report["curvature"].item())


def test_fisher_of_parameters_whose_gradients_share_memory() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3] + (self.a + self.b)

    net, model = Net(), Twice()
    params = list(model.parameters())
    with torch.no_grad():
        probe = ClosureProbe(problems.samples_of(model, net.x, net.y), params, Replay(params, None))
        probe()
        fisher = probe.fisher(16)
    error = net.x[:, :3].softmax(1) - F.one_hot(net.y, 3)
    for f in fisher:
        torch.testing.assert_close(f, error.square().sum(0))


@pytest.mark.parametrize("method", crsam.methods())
def test_gradients_may_be_written_over_the_same_memory_in_every_pass(method: str) -> None:
    """As DDP does with ``gradient_as_bucket_view=True``."""
    models = []
    for shared in (False, True):
        net = Net()
        opt = crsam.make(method, net.sgd())
        params = list(net.model.parameters())
        memory = [torch.zeros_like(p) for p in params]

        def losses(part: Tensor | slice, net: Net = net) -> Tensor:
            return problems.cross_entropy(net.model(net.x[part]), net.y[part])

        def into_memory(p: Tensor, m: Tensor) -> None:
            assert p.grad is not None
            p.grad = m.copy_(p.grad)

        if shared:
            for p, m in zip(params, memory):
                p.register_post_accumulate_grad_hook(lambda p, m=m: into_memory(p, m))
        for _ in range(4):
            opt.step(crsam.PerSample(losses, 16))
        models.append(net.model)
    for a, b in zip(*(m.parameters() for m in models)):
        assert torch.equal(a, b)


def test_a_parameter_frozen_between_steps_stays() -> None:
    net = Net()
    opt = crsam.SAM(net.sgd())
    opt.step(net.samples())
    net.model[0].requires_grad_(False)
    before = net.model[0].weight.clone()
    opt.step(net.samples())
    assert torch.equal(net.model[0].weight, before)


def test_checkpoints_keyed_by_name_are_mapped_through_their_groups() -> None:
    """Distributed checkpoints name parameters instead of numbering them."""
    net = Net()
    opt = crsam.FriendlySAM(net.sgd())
    opt.step(net.samples())
    saved = copy.deepcopy(opt.state_dict())
    names = [name for name, _ in net.model.named_parameters()]
    saved["param_groups"][0]["params"] = names
    saved["state"] = {names[i]: entry for i, entry in saved["state"].items()}
    other = crsam.FriendlySAM(net.sgd())
    other.load_state_dict(saved)
    again = other.state_dict()["state"]
    for i, entry in opt.state_dict()["state"].items():
        assert torch.equal(again[i]["crsam_mean_gradient"], entry["crsam_mean_gradient"])


def test_a_mask_that_went_through_a_plain_optimizers_checkpoint() -> None:
    net = Net()
    opt = crsam.SSAM(net.sgd(), period=1)
    for _ in range(2):
        opt.step(net.samples())
    plain = net.sgd()
    plain.load_state_dict(opt.state_dict())
    opt = crsam.SSAM(net.sgd(), period=1)
    opt.load_state_dict(plain.state_dict())
    opt.step(net.samples())


def test_bases_that_maximize_are_refused() -> None:
    with pytest.raises(ValueError, match="return the negative loss"):
        crsam.SAM(Net().sgd(maximize=True))


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="complex"):
        crsam.SAM(SGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=0.1))


@pytest.mark.parametrize("method", crsam.methods())
@pytest.mark.parametrize("margin", [40.0, 47.0, 60.0, 90.0, 200.0])
def test_a_solved_batch_leaves_the_weights_finite(method: str, margin: float) -> None:
    """Gradients of 1e-18 to 1e-40, whose squares and inverse squares are no numbers any more."""
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[margin / 2], [-margin / 2]])
    opt = crsam.make(method, SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        opt.step(problems.samples_of(model, torch.ones(4, 1), torch.zeros(4).long()))
    assert model.weight.isfinite().all()


def test_random_direction_has_the_length_of_the_offset() -> None:
    net = Net()
    lengths: list[float] = []

    class Spy(ClosureProbe):
        def __call__(self, offset: Offset | None = None, *, last: bool = False):  # type: ignore[no-untyped-def]
            lengths.append(offset.length().item() if offset is not None else 0.0)
            return super().__call__(offset, last=last)

    opt = SharpnessAware(net.sgd(), Adaptive(0.5), Curvature(direction="random"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crsam.optim.step.ClosureProbe", Spy)
        opt.step(net.samples())
    assert lengths == pytest.approx([0.0, lengths[1], lengths[1], lengths[1]])


def test_parts_of_one_step_draw_different_numbers() -> None:
    net = Net()
    seeds: list[int] = []
    for ascent, objective, schedule in (
        (Random(), Curvature(direction="random"), None),
        (RandomTensors(), None, PartOfBatch(pick="random")),
    ):
        seeds.clear()
        opt = SharpnessAware(net.sgd(), ascent, objective, schedule, seed=67280421310721)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("crsam.optim.step.torch.Generator", _spying(seeds))
            opt.step(net.samples())
        assert len(seeds) == len(set(seeds)) >= 2


def _spying(seeds: list[int]) -> type[torch.Generator]:
    class Spy(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            seeds.append(seed)
            return super().manual_seed(seed)

    return Spy


def test_gsam_with_learning_rates_of_zero() -> None:
    net = Net()
    groups = [
        {"params": net.model[0].parameters(), "lr": 0.0},
        {"params": net.model[2].parameters()},
    ]
    crsam.GSAM(SGD(groups, lr=0.1)).step(net.samples())


def test_gsam_takes_the_rate_before_a_scheduler_that_is_already_there() -> None:
    base = Net().sgd()
    torch.optim.lr_scheduler.LinearLR(base, 0.01)
    assert base.param_groups[0]["lr"] == pytest.approx(0.001)
    opt = crsam.GSAM(base, rho=0.2, rho_min=0.1)
    assert opt.group_options()["rho"][0] == pytest.approx(0.101)
    opt = crsam.GSAM(base, rho=0.2, rho_min=0.1, lr_max=0.001)
    assert opt.group_options()["rho"][0] == pytest.approx(0.2)


@pytest.mark.parametrize("is_before", [True, False])
def test_gsam_takes_the_highest_rate_of_one_cycle(is_before: bool) -> None:
    base = Net().sgd()
    if is_before:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(base, max_lr=0.5, total_steps=10)
    opt = crsam.GSAM(base, rho=0.2, rho_min=0.1)
    if not is_before:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=10)
    assert scheduler.get_last_lr() == [pytest.approx(0.02)]
    assert opt.group_options()["rho"][0] == pytest.approx(0.1 + 0.1 * 0.02 / 0.5)


def test_a_tensor_as_rho_is_not_shared_by_the_groups() -> None:
    net = Net()
    groups = [{"params": layer.parameters()} for layer in (net.model[0], net.model[2])]
    opt = crsam.SAM(SGD(groups, lr=0.1), rho=torch.tensor(0.1))  # type: ignore[arg-type]
    opt.param_groups[0]["rho"].fill_(0.3)
    assert opt.param_groups[1]["rho"].item() == pytest.approx(0.1)
    opt.step(net.samples())
    with pytest.raises(ValueError, match="single number"):
        crsam.SAM(net.sgd(), rho=torch.tensor([0.1]))  # type: ignore[arg-type]


def test_numpy_numbers_are_numbers() -> None:
    net = Net()
    crsam.CRSAM(net.sgd(), rho=np.float32(0.1), warmup=np.int64(5)).step(net.samples())


@pytest.mark.parametrize("result", [("loss", 1), {"loss": 1}, None])
def test_closures_that_return_something_else(result: object) -> None:
    net = Net()
    opt = crsam.SAM(net.sgd())

    def closure() -> object:
        net.samples()()
        return result

    with pytest.raises(RuntimeError, match=f"returned {type(result).__name__}"):
        opt.step(closure)  # type: ignore[arg-type]


def test_reported_loss_of_lbfgs_is_the_one_returned() -> None:
    net = Net()
    opt = crsam.SAM(torch.optim.LBFGS(net.model.parameters(), max_iter=4))
    assert opt.step(net.samples()) == opt.report["loss"]


def test_step_hooks_fire_after_unpickling_in_a_new_process() -> None:
    net = Net()
    opt = crsam.SAM(net.sgd())
    opt.step(net.samples())
    code = (
        "import pickle, sys, torch; opt = pickle.load(sys.stdin.buffer); calls = []\n"
        "opt.register_step_post_hook(lambda *_: calls.append(1))\n"
        "p = opt.param_groups[0]['params']\n"
        "def closure():\n"
        "    loss = sum(q.square().sum() for q in p); loss.backward(); return loss\n"
        "opt.step(closure); assert calls == [1]"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(opt), check=True)


def test_mixed_dtypes_and_memory_formats() -> None:
    torch.manual_seed(0)
    body = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last).bfloat16()
    head = nn.Linear(4, 3)
    x, y = torch.randn(8, 2, 6, 6), torch.randint(3, (8,))
    opt = crsam.CRSAM(Adam([*body.parameters(), *head.parameters()], lr=1e-2), warmup=0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(head(body(x.bfloat16()).float().mean((2, 3))), y)
        loss.backward()
        return loss

    losses = [opt.step(closure).item() for _ in range(30)]
    assert losses[-1] < losses[0]
    assert body.weight.is_contiguous(memory_format=torch.channels_last)


def test_tied_weights_move_together() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(6, 4)
    out = nn.Linear(4, 6, bias=False)
    out.weight = embedding.weight
    opt = crsam.CRSAM(SGD(nn.ModuleList([embedding, out]).parameters(), lr=0.1), warmup=0)
    words = torch.arange(6)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(out(embedding(words)), words.roll(1))
        loss.backward()
        return loss

    opt.step(closure)
    assert out.weight is embedding.weight
    assert opt.report["dropped_slope"] == 0
