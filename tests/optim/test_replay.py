"""Passes of one step are the same function of the weights, and leave the first pass's buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import crsam
import problems
from crsam.optim.functional import Functional
from crsam.optim.replay import Replay


class Counting(nn.Module):
    """Moves a buffer in place and replaces another at every forward."""

    moved: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moved", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.moved.add_(1)
        self.replaced = self.replaced + 1
        return x


LAYERS = {
    "batch norm": nn.BatchNorm1d(4),
    "batch norm with a cumulative mean": nn.BatchNorm1d(4, momentum=None),
    "batch norm in evaluation mode": nn.BatchNorm1d(4).eval(),
    "instance norm": nn.InstanceNorm1d(4, track_running_stats=True),
    "spectral norm": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "own buffers": Counting(),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_buffers_are_those_of_the_first_pass(layer: nn.Module) -> None:
    model = nn.Sequential(copy.deepcopy(layer), nn.Linear(4, 2))
    x = torch.randn(8, 4) if "Instance" not in type(layer).__name__ else torch.randn(8, 4, 4)
    once = copy.deepcopy(model)
    once(x)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), warmup=0, rho=0.5, model=model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    opt.step(closure)
    for name, buffer in once.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_an_exception_in_a_later_pass_leaves_the_first_passs_statistics() -> None:
    model, once = problems.conv_net(), problems.conv_net()
    (x, y), *_ = problems.batches(1)
    torch.manual_seed(0)
    once(x)
    opt = crsam.SAM(SGD(model.parameters(), lr=0.1), model=model)
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        loss = problems.cross_entropy(model(x), y).mean()
        if passes == 2:
            raise ZeroDivisionError
        loss.backward()
        return loss

    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError):
        opt.step(closure)
    for name, buffer in once.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_two_optimizers_on_one_model_nested_in_one_closure() -> None:
    """The inner step, in each pass of the outer, starts from and ends in the same statistics."""
    model = problems.conv_net()
    (x, y), *_ = problems.batches(1)
    head = list(model[-1].parameters())
    body = [p for p in model.parameters() if all(p is not q for q in head)]
    outer = crsam.SAM(SGD(body, lr=0.0), model=model)
    inner = crsam.SAM(SGD(head, lr=0.0), model=model)

    def closure() -> Tensor:
        inner.step(problems.closure_of(model, inner, x, y))
        outer.zero_grad()
        loss = problems.cross_entropy(model(x), y).mean()
        loss.backward()
        return loss

    reference = copy.deepcopy(model)
    torch.manual_seed(0)
    outer.step(closure)
    torch.manual_seed(0)
    reference(x), reference(x)  # the inner step's first pass and the outer closure's own
    for name, buffer in reference.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_gradients_for_another_optimizer_are_those_of_the_first_pass() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    model = nn.Sequential(body, nn.Tanh(), head)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    expected = torch.autograd.grad(problems.cross_entropy(model(x), y).mean(), head.weight)
    opt = crsam.CRSAM(SGD(body.parameters(), lr=0.1), warmup=0, model=model)
    other = SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        other.zero_grad()
        opt.step(problems.closure_of(model, opt, x, y))
        torch.testing.assert_close(head.weight.grad, expected[0])
        expected = torch.autograd.grad(problems.cross_entropy(model(x), y).mean(), head.weight)


def test_without_a_model_buffers_move_in_every_pass() -> None:
    model = problems.conv_net()
    (x, y), *_ = problems.batches(1)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="model=model"):
        opt.step(problems.closure_of(model, opt, x, y))
    assert model[1].num_batches_tracked == 3


def test_random_states_of_all_passes_start_alike_and_end_after_the_first() -> None:
    replay = Replay([torch.zeros(1)], None)
    torch.manual_seed(0)
    draws = []
    for size in (3, 3, 5):
        with replay.one_pass():
            draws.append(torch.rand(size))
    following = torch.rand(1)
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2][:3])
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(following, torch.rand(1))


class Centered(nn.Module):
    """Reads the running mean that it moves."""

    mean: Tensor

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6).double(), nn.Linear(6, 2).double()
        self.replaces = replaces
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x).tanh()
        with torch.no_grad():
            if self.replaces:
                self.mean = self.mean.lerp(h.mean(0), 0.3)
            else:
                self.mean.lerp_(h.mean(0), 0.3)
        return self.outer(h - self.mean)


class Renorm(nn.BatchNorm1d):
    """Batch renormalisation: a batch norm that reads the statistics that it moves."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(0), x.std(0)
        assert self.running_mean is not None
        shifted = (x - mean) / std + (mean.detach() - self.running_mean)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.3)
        return shifted


def renormalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), Renorm(3, affine=False), nn.Linear(3, 2)).double()


class Lazy(nn.Module):
    """Makes its buffer in the first pass that does not find it, or drops it again."""

    def __init__(self, drops: bool, registered: bool) -> None:
        super().__init__()
        self.layer, self.drops = nn.Linear(4, 2).double(), drops
        if registered:
            self.register_buffer("seen", torch.ones(2, dtype=torch.float64) if drops else None)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        seen = getattr(self, "seen", None)
        if seen is None:
            if "seen" not in self._buffers:
                self.register_buffer("seen", None)
            self.seen = out.detach().mean(0)
            return out
        if self.drops:
            self.seen = None
        return out - seen


class Growing(nn.Module):
    """Adds a layer with buffers in its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "norm"):
            self.norm = nn.BatchNorm1d(2, affine=False).double()
        return self.norm(self.layer(x))


class MomentumEncoder(nn.Module):
    """As in MoCo: a copy that is not trained follows within the forward pass."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()
        self.key.requires_grad_(False)
        self.replaces = replaces

    def forward(self, x: Tensor) -> Tensor:
        for mine, theirs in zip(self.key.parameters(), self.query.parameters()):
            new = mine.detach() * 0.7 + theirs.detach() * 0.3
            if self.replaces:
                mine.data = new
            else:
                mine.copy_(new)
        return self.query(x) * self.key(x)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - 1).square().mean()


@pytest.mark.parametrize(
    ("make", "functional"),
    [
        (lambda: Centered(False), False),
        (lambda: Centered(False), True),
        (lambda: Centered(True), False),
        (lambda: MomentumEncoder(True), False),
        (renormalised, False),
        (renormalised, True),
        (Growing, False),
        (lambda: Lazy(False, True), False),
        (lambda: Lazy(False, False), False),
        (lambda: Lazy(True, True), False),
    ],
)
def test_passes_start_from_the_buffers_of_the_first(
    make: Callable[[], nn.Module], functional: bool
) -> None:
    """Three passes from the same state, by hand, have the same losses."""
    torch.manual_seed(0)
    model, batches = make(), torch.randn(5, 8, 4, dtype=torch.float64)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = crsam.CRSAM(SGD(trained, lr=0.1), warmup=0, rho=0.3, model=model)
    for x in batches:
        clones = [copy.deepcopy(model) for _ in range(3)]
        loss_of(clones[0], x).backward()
        mine = [p for p in clones[0].parameters() if p.requires_grad]
        grads = [p.grad for p in mine if p.grad is not None]
        length = torch.cat([g.flatten() for g in grads]).norm()
        losses = [loss_of(copy.deepcopy(model), x)]
        for clone, sign in zip(clones[1:], (1, -1)):
            with torch.no_grad():
                for p, g in zip((p for p in clone.parameters() if p.requires_grad), grads):
                    p.add_(g, alpha=float(sign * 0.3 / length))
            losses.append(loss_of(clone, x))

        def closure(x: Tensor = x) -> Tensor:
            opt.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            return loss

        known = Functional(model, loss_of)
        known.batch = x
        opt.step(known if functional else closure)
        for name, loss in zip(("loss", "loss_plus", "loss_minus"), losses):
            assert opt.report[name].item() == pytest.approx(loss.item(), rel=1e-12), name
        left = dict(clones[0].named_buffers()) | {
            name: p for name, p in clones[0].named_parameters() if not p.requires_grad
        }
        for name, value in left.items():
            torch.testing.assert_close(model.state_dict()[name], value.detach())


def test_a_momentum_encoder_that_is_written_in_place_follows_once_a_step() -> None:
    model = MomentumEncoder(False)
    x = torch.randn(8, 4, dtype=torch.float64)
    once = copy.deepcopy(model)
    once(x)
    opt = crsam.CRSAM(SGD(model.query.parameters(), lr=0.1), warmup=0, rho=0.3, model=model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        return loss

    opt.step(closure)
    for mine, theirs in zip(model.key.parameters(), once.key.parameters()):
        torch.testing.assert_close(mine, theirs)


def odd_parameters() -> dict[str, nn.Parameter]:
    dense = torch.eye(3)
    with torch.inference_mode():
        made = torch.ones(3)
    odd = {
        "meta": torch.ones(3, device="meta"),
        "sparse": dense.to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2)] * 2, layout=torch.jagged),
        "inference": made,
    }
    return {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in odd.items()}


@pytest.mark.parametrize("name", odd_parameters())
def test_frozen_parameters_of_any_kind_are_left_alone(name: str) -> None:
    model = nn.Linear(4, 2).double()
    model.odd = odd_parameters()[name]
    opt = crsam.CRSAM(SGD([model.weight, model.bias], lr=0.1), warmup=0, model=model)
    x = torch.randn(8, 4, dtype=torch.float64)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        return loss

    before = closure()
    for _ in range(3):
        opt.step(closure)
    assert closure() < before


def test_what_never_moves_is_copied_in_the_first_step_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Counting(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("table", torch.zeros(5))
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    for step in range(2):
        replay = Replay(trained, model)
        with replay.one_pass():
            model(torch.randn(8, 4))
            kept = [b.name for b in replay.before]
            held = [p.first is not None for p in replay.frozen]
        assert ("table" in kept, any(held)) == (step == 0, step == 0)
        assert {b.name for b in replay.restarted} == {"moved", "replaced"}
        moving = {"running_mean", "running_var", "num_batches_tracked", "moved", "replaced"}
        assert {b.name for b in replay.before} == moving


def test_a_momentum_encoder_is_put_back_where_a_scaler_skips_the_step() -> None:
    model = MomentumEncoder(True)
    replay = Replay(list(model.query.parameters()), model, undoes=True)
    before = [p.clone() for p in model.key.parameters()]
    with replay.one_pass():
        model(torch.randn(8, 4, dtype=torch.float64))
    assert not torch.equal(model.key.weight, before[0])
    replay.undo()
    assert all(map(torch.equal, model.key.parameters(), before))
