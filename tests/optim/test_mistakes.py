"""Mistakes in a closure: an error or a warning with cause and cure, and nothing has changed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

import crsam
import problems
from crsam.optim import Functional

every_method = pytest.mark.parametrize("method", crsam.methods())


class Training:
    """A net with batch norm and dropout whose closure makes a mistake when it is told to."""

    def __init__(self, method: str = "sam", make: Callable[..., Optimizer] | None = None) -> None:
        self.model = problems.conv_net(torch.float32)
        make = make or (lambda params: SGD(params, lr=0.1, momentum=0.9))
        self.base = make(self.model.parameters())
        self.opt = crsam.make(method, self.base, model=self.model)
        ((self.x, self.y),) = problems.batches(1, torch.float32)
        self.mistake: Callable[[], Any] | None = None
        self.passes = 0

    def losses(self, part: Tensor | slice) -> Tensor:
        losses = problems.cross_entropy(self.model(self.x[part]), self.y[part])
        self.err()
        return losses

    def closure(self) -> Tensor:
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.err()
        return loss

    def err(self) -> None:
        self.passes += 1
        if self.mistake is not None:
            self.mistake()

    def step(self, method: str = "sam") -> Tensor:
        samples = crsam.PerSample(self.losses, len(self.x))
        return self.opt.step(samples if method in ("esam", "ssam") else self.closure)

    def everything(self) -> list[Any]:
        state = self.opt.state_dict()
        tensors = [*self.model.state_dict().values(), torch.get_rng_state()]
        return [copy.deepcopy(tensors), repr(state["state"]), repr(state["param_groups"])]

    def refuses(self, message: str, step: Callable[[], Any] | None = None) -> None:
        before = self.everything()
        with pytest.raises(RuntimeError, match=message):
            (step or self.step)()
        after = self.everything()
        assert all(map(torch.equal, before[0], after[0]))
        assert before[1:] == after[1:]


@every_method
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("in_pass", [1, 2])
def test_a_closure_that_steps_the_base(method: str, first: bool, in_pass: int) -> None:
    training = Training(method)
    for _ in range(0 if first else 2):  # some methods take no second pass in every step
        training.step(method)
    start = training.passes

    def mistake() -> None:
        if training.passes == start + in_pass:
            training.base.step()

    training.mistake = mistake
    if in_pass == 2 and not first and method in ("looksam", "aesam"):
        pytest.skip("a step of one pass")
    training.refuses("closure calls the step of SGD.*Delete", lambda: training.step(method))
    training.mistake = None
    training.step(method)


def compiled(training: Training) -> Callable[[], Any]:
    training.base.step = torch.compile(training.base.step, backend="eager")  # type: ignore[method-assign]
    return lambda: training.base.step()


def compiled_before(training: Training) -> Callable[[], Any]:
    """A compiled function that has taken a step already."""
    step = torch.compile(lambda: training.base.step(), backend="eager")
    for p in training.model.parameters():
        p.grad = torch.zeros_like(p)
    step()
    return step


def scaled(training: Training) -> Callable[[], Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    return lambda: scaler.step(training.base)


def scheduled(training: Training) -> Callable[[], Any]:
    StepLR(training.base, 1)
    return lambda: training.base.step()


def copied(training: Training) -> Callable[[], Any]:
    """Copies of an optimizer lose its hooks."""
    training.step()
    training.model, training.opt = copy.deepcopy((training.model, training.opt))
    training.base = training.opt.base
    return lambda: training.base.step()


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("way", [compiled, compiled_before, scaled, scheduled, copied])
def test_the_base_is_refused_however_it_is_stepped(way: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    training = Training()
    training.mistake = way(training)
    training.refuses("closure calls the step of SGD")


@pytest.mark.parametrize("make", [Adam, LBFGS])
def test_other_bases_refuse_too(make: Callable[..., Optimizer]) -> None:
    training = Training(make=make)
    training.mistake = lambda: training.base.step(lambda: torch.zeros(()))
    before = copy.deepcopy(training.model.state_dict())
    with pytest.raises(RuntimeError, match=f"closure calls the step of {make.__name__}"):
        training.step()
    assert all(map(torch.equal, before.values(), training.model.state_dict().values()))


@pytest.mark.parametrize("make", [Adam, LBFGS])
def test_a_closure_that_steps_the_optimizer_itself(make: Callable[..., Optimizer]) -> None:
    training = Training(make=make)
    before = copy.deepcopy(training.model.state_dict())
    for mistake in (training.step, lambda: training.opt.step()):
        training.mistake = mistake
        with pytest.raises(RuntimeError, match=r"closure calls SAM\.step.*Delete"):
            training.step()
    assert all(map(torch.equal, before.values(), training.model.state_dict().values()))


def test_a_closure_may_step_another_optimizer() -> None:
    training, other = Training(), Training()
    training.mistake = other.step
    training.step()
    assert other.passes == 2 * training.passes == 4


def test_a_compiled_base_is_not_compiled_more_often() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    training = Training()
    training.base.step = torch.compile(training.base.step, backend=counter)  # type: ignore[method-assign]
    for _ in range(3):
        training.step()
    count = counter.frame_count
    for _ in range(3):
        training.step()
    assert counter.frame_count == count


OUTSIDE: dict[str, Callable[[nn.Sequential, Tensor], Tensor]] = {
    "features": lambda model, x: model[0](x).square(),
    "regulariser": lambda model, x: model[0].weight.square().sum(),
    "output": lambda model, x: nn.functional.softplus(model(x)),
}


@every_method
@pytest.mark.parametrize("what", OUTSIDE)
@pytest.mark.parametrize("retain", [False, True])
def test_a_graph_from_outside_the_closure(method: str, what: str, retain: bool) -> None:
    """Freed by the first pass; retained, it needs weights that have moved."""
    training = Training(method)
    outside = OUTSIDE[what](training.model, training.x)

    def closure() -> Tensor:
        loss = F.cross_entropy(training.model(training.x), training.y) + 0.1 * outside.mean()
        loss.backward(retain_graph=retain)
        return loss

    def losses(part: Tensor | slice) -> Tensor:
        found = problems.cross_entropy(training.model(training.x[part]), training.y[part])
        return found + 0.1 * outside.mean()

    if method in ("esam", "ssam"):
        if retain:
            pytest.skip("the step itself calls backward")
        step: Any = crsam.PerSample(losses, len(training.x))
    else:
        step = closure
    pattern = r"computed before this call of the closure.*detach\(\) it"
    training.refuses(pattern, lambda: training.opt.step(step))


def test_torchs_own_error_is_the_cause_and_the_cures_work() -> None:
    training = Training()
    outside = training.model[0].weight.square().sum()

    def closure(outside: Tensor = outside) -> Tensor:
        loss = F.cross_entropy(training.model(training.x), training.y) + outside
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="detach") as info:
        training.opt.step(closure)
    assert "second time" in str(info.value.__cause__)
    training.opt.step(lambda: closure(outside.detach()))
    training.opt.step(lambda: closure(training.model[0].weight.square().sum()))


@every_method
def test_an_activation_that_the_closure_changes_in_place_is_torchs_error(method: str) -> None:
    """The graph is of this pass. That of R-SAM, too, although the weights have moved before it."""
    training = Training(method)

    def losses(part: Tensor | slice) -> Tensor:
        features = training.model(training.x[part]).sigmoid()
        found = problems.cross_entropy(features, training.y[part])
        features.mul_(2)
        return found

    samples = crsam.PerSample(losses, len(training.x))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        training.opt.step(samples)


def test_other_errors_stay_as_they_are() -> None:
    training = Training()

    def mistake() -> None:
        if training.passes == 2:
            raise RuntimeError("out of memory")

    training.mistake = mistake
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        training.step()


def test_a_functional_may_use_a_graph_from_outside() -> None:
    """It takes gradients of its own copies of the weights, so nobody frees that graph."""
    model = nn.Linear(3, 2)
    outside = model.weight.square().sum()
    functional = Functional(model, lambda model, x: model(x).square().mean() + outside)
    functional.batch = torch.ones(4, 3)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.1), model=model)
    for _ in range(2):
        opt.step(functional)


def complex_(loss: Tensor) -> Tensor:
    return torch.complex(loss, torch.zeros_like(loss))


@every_method
@pytest.mark.parametrize("first", [True, False])
def test_a_complex_loss(method: str, first: bool) -> None:
    training = Training(method)
    for _ in range(0 if first else 2):
        training.step(method)

    def closure() -> Tensor:
        return complex_(training.closure())

    def loss_of(part: slice) -> Tensor:
        return complex_(F.cross_entropy(training.model(training.x[part]), training.y[part]))

    samples = crsam.PerSample(lambda part: complex_(training.losses(part)), len(training.x))
    closures: list[Any] = [samples]
    if method not in ("esam", "ssam"):
        halves = [slice(0, 8), slice(8, 16)]
        closures += [closure, lambda: closure().item(), crsam.MicroBatches(loss_of, halves)]
    for each in closures:
        training.refuses(
            r"loss is a complex number.*loss\.real", lambda each=each: training.opt.step(each)
        )


def test_a_complex_loss_of_a_functional() -> None:
    training = Training("crsam")
    functional = Functional(
        training.model, lambda model, x: complex_(F.cross_entropy(model(x), training.y))
    )
    functional.batch = training.x
    training.refuses(r"loss is a complex number", lambda: training.opt.step(functional))


class Norms:
    """A net with batch norm and its steps; ``model=`` is not given."""

    def __init__(self, method: str = "sam", norm: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        middle = norm or nn.BatchNorm1d(5)
        self.model = nn.Sequential(nn.Linear(4, 5), middle, nn.Tanh(), nn.Linear(5, 3))
        self.opt = crsam.make(method, SGD(self.model.parameters(), lr=0.1))
        self.x, self.y = torch.randn(8, 4), torch.randint(3, (8,))

    def step(self, forward: Any = None) -> Tensor:
        forward = forward or self.model
        return self.opt.step(
            crsam.PerSample(
                lambda part: problems.cross_entropy(forward(self.x[part]), self.y[part]), 8
            )
        )


@every_method
def test_batch_norm_without_the_model_is_pointed_out_once(method: str) -> None:
    norms = Norms(method)
    with pytest.warns(UserWarning, match=r"\(base, \.\.\., model=model\)"):
        norms.step()
    for _ in range(12):  # warnings are errors here
        norms.step()


def test_the_warning_names_the_line_of_the_user() -> None:
    norms = Norms()
    with pytest.warns(UserWarning, match="model=model") as caught:
        norms.step()
    assert caught[0].filename == __file__


def test_a_compiled_model_is_watched_without_another_compilation() -> None:
    torch._dynamo.reset()
    counter, norms = CompileCounter(), Norms()
    forward = torch.compile(norms.model, backend=counter, fullgraph=True)
    with pytest.warns(UserWarning, match="model=model"):
        norms.step(forward)
    norms.step(forward)
    assert counter.frame_count == 1


def quiet() -> Iterator[Norms]:
    given = Norms()
    given.opt.model = given.model
    yield given
    evaluating = Norms()
    evaluating.model.eval()
    yield evaluating
    yield Norms(norm=nn.BatchNorm1d(5, track_running_stats=False))
    yield Norms(norm=nn.LayerNorm(5))
    yield Norms(norm=nn.GroupNorm(1, 5))
    still = Norms(norm=nn.BatchNorm1d(5, momentum=0.0))  # as sam.py sets it in a second pass
    yield still


@pytest.mark.parametrize("case", range(6))
def test_no_warning_where_no_statistics_move(case: int) -> None:
    norms = list(quiet())[case]
    bystanders = [nn.BatchNorm1d(5), nn.LazyBatchNorm1d(), nn.BatchNorm1d(5, device="meta")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norms.step()
    assert all(each.training for each in bystanders)


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
@pytest.mark.parametrize("method", ["sam", "crsam", "looksam"])
def test_scripted_and_traced_models_are_like_others(kind: str, method: str) -> None:
    """Their containers of buffers are not quite dicts."""
    trained = []
    for is_scripted in (False, True):
        torch.manual_seed(0)
        layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3)
        model: Any = nn.Sequential(*layers)
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        if is_scripted:
            own = copy.deepcopy(model.state_dict())  # tracing is a forward pass
            model = (
                torch.jit.script(model)
                if kind == "script"
                else torch.jit.trace(model, x, check_trace=False)
            )
            model.load_state_dict(own)
        opt = crsam.make(method, SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)
        for t in range(3):
            torch.manual_seed(t)
            opt.step(problems.closure_of(model, opt, x, y))
        trained.append(model.state_dict())
    assert trained[1]["1.num_batches_tracked"] == 3
    for a, b in zip(*(each.values() for each in trained)):
        torch.testing.assert_close(a, b)
