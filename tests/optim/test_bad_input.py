"""A user's mistake is one clear error that says what to do, and leaves everything as it was."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, RMSprop

import crsam
from crsam.optim import (
    Ascent,
    ByGradientNorm,
    Curvature,
    DynamicMask,
    Evaluation,
    EveryK,
    FisherMask,
    FollowLearningRate,
    Gradient,
    GradientNorm,
    Objective,
    Offset,
    PartOfBatch,
    Probe,
    RandomTensors,
    StepContext,
    Weighted,
)


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 2)


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.ones(4, 3)).square().mean()


def backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda base: crsam.CRSAM(base, roh=0.1), r"option of CRSAM 'roh': did you mean 'rho'\?"),
        (lambda base: crsam.SAM(base, adaptive=True), "of SAM 'adaptive': .*ASAM is adaptive"),
        (lambda base: crsam.SharpnessAware(base, Gradient(), wamup=3), "did you mean 'warmup'"),
        (lambda base: crsam.make("gsam", base, rho_mini=0.1), "of GSAM .* 'rho_min'"),
    ],
)
def test_misspelt_options_are_named_with_the_nearest(
    model: nn.Module, make: Callable[[SGD], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make(sgd(model))


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (
            lambda params: crsam.SAM(params, SGD, rho=0.1, lr=0.2, momentum=0.9),
            "crsam.SAM(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.1)",
        ),
        (
            lambda params: crsam.CRSAM(params=params, base_optimizer=torch.optim.Adam),
            "crsam.CRSAM(Adam(model.parameters()))",
        ),
        (
            lambda params: crsam.SAM(params, SGD, rho=2.0, adaptive=True, lr=0.2),
            "crsam.ASAM(SGD(model.parameters(), lr=0.2), rho=2.0)",
        ),
        (
            lambda params: crsam.SAM(params, SGD, 2.0, True, lr=0.2),
            "crsam.ASAM(SGD(model.parameters(), lr=0.2), rho=2.0)",
        ),
        (
            lambda params: crsam.CRSAM(params, SGD, adaptive=True, lr=0.2),
            "crsam.CRSAM(SGD(model.parameters(), lr=0.2))",
        ),
        (
            lambda params: crsam.SAM(params, partial(SGD, lr=0.2), 0.1),
            "crsam.SAM(SGD(model.parameters(), lr=0.2), rho=0.1)",
        ),
        (
            lambda params: crsam.SAM(SGD, params, lr=0.2),
            "crsam.SAM(SGD(model.parameters(), lr=0.2))",
        ),
        (
            lambda params: crsam.LookSAM(
                k=3, model=nn.Linear(3, 2), base_optimizer=SGD(params, lr=0.2), rho=0.1
            ),
            "crsam.LookSAM(optimizer, k=3, model=model, rho=0.1)",
        ),
    ],
)
def test_the_call_of_a_sam_py_is_told_as_it_reads_here(
    model: nn.Module, call: Callable[..., Any], ours: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"is built: {ours}") + "$"):
        call(model.parameters())
    names = {"crsam": crsam, "SGD": SGD, "Adam": torch.optim.Adam, "model": model}
    eval(ours, names | {"optimizer": sgd(model)})


def test_a_subclass_may_be_called_like_a_sam_py(model: nn.Module) -> None:
    class Old(crsam.SAM):
        def __init__(self, params: Any, base_optimizer: type[SGD], rho: float, **theirs: Any):
            super().__init__(base_optimizer(params, **theirs), rho=rho)

    opt = Old(model.parameters(), SGD, rho=0.3, lr=0.2)
    assert (opt.param_groups[0]["rho"], opt.param_groups[0]["lr"]) == (0.3, 0.2)


def test_what_a_sam_py_has_and_we_have_not_is_told_with_what_we_have(model: nn.Module) -> None:
    opt: Any = crsam.CRSAM(sgd(model))
    hints = {"first_step": r": one opt\.step", "base_optimizer": r": it is opt\.base", "x": "$"}
    for name, hint in hints.items():
        with pytest.raises(AttributeError, match=f"'CRSAM' object has no attribute '{name}'{hint}"):
            getattr(opt, name)
        assert not hasattr(opt, name)
    copy.deepcopy(opt)


def test_an_option_of_the_base_is_sent_there(model: nn.Module) -> None:
    with pytest.raises(TypeError, match="'momentum' is an option of SGD: give it to that one"):
        crsam.SAM(sgd(model), momentum=0.9)  # type: ignore[call-arg]


def test_a_base_with_steps_of_its_own_is_refused(model: nn.Module) -> None:
    class Theirs(SGD):
        def first_step(self) -> None: ...

    with pytest.raises(ValueError, match="Theirs with a first_step of its own"):
        crsam.SAM(Theirs(model.parameters(), lr=0.1))


def test_what_is_no_state_of_an_optimizer_is_refused(model: nn.Module) -> None:
    opt = crsam.SAM(sgd(model))
    for wrong in (model.state_dict(), {"model": model.state_dict()}, [1, 2], "x"):
        with pytest.raises(ValueError, match="not the state_dict"):
            opt.load_state_dict(wrong)


def test_the_checkpoint_of_a_sam_py_is_refused(model: nn.Module) -> None:
    opt = crsam.SAM(sgd(model))
    theirs = sgd(model).state_dict()
    theirs["state"] = {i: {"old_p": p.detach()} for i, p in enumerate(model.parameters())}
    with pytest.raises(ValueError, match=r"checkpoint of a sam\.py"):
        opt.load_state_dict(theirs)
    assert not opt.state


@pytest.mark.parametrize("method", crsam.methods())
@pytest.mark.parametrize("kind", [SGD, RMSprop])
def test_hyper_parameters_are_not_set_on_the_optimizer(
    model: nn.Module, kind: type[torch.optim.Optimizer], method: str
) -> None:
    """They would be ignored there. What the error says instead is heard."""
    opt = crsam.make(method, kind(model.parameters(), lr=0.1))
    for each in (opt, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        for name, key in opt._keys.items():
            with pytest.raises(AttributeError, match=rf"{name} lives in the .* groups") as told:
                setattr(each, name, 0.25)
            exec(str(told.value).split(": ", 1)[1], {"opt": each})
            assert each.param_groups[0][key] == 0.25
            assert not hasattr(each, name)
        each.max_norm = 1.0
        each.mine = "any other name"


@pytest.mark.parametrize(
    ("method", "part", "name", "value"),
    [("crsam", "objective", "trust", 0.25), ("looksam", "schedule", "k", 3)],
)
def test_options_of_the_parts_are_not_set_on_the_optimizer_either(
    model: nn.Module, method: str, part: str, name: str, value: Any
) -> None:
    opt = crsam.make(method, sgd(model))
    for each in (opt, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        with pytest.raises(AttributeError, match=f"{name} belongs to the {part}") as told:
            setattr(each, name, value)
        exec(str(told.value).split(": ", 1)[1], {"opt": each, "dataclasses": dataclasses})
        assert getattr(getattr(each, part), name) == value
        assert not hasattr(each, name)


@pytest.mark.parametrize("method", crsam.methods())
def test_no_argument_of_a_method_is_ignored_when_it_is_set_later(
    model: nn.Module, method: str
) -> None:
    opt = crsam.make(method, sgd(model))
    for name in set(inspect.signature(type(opt)).parameters) - {"base", "common", "options"}:
        if name in vars(opt):  # such as the warm-up, which is read at every step
            setattr(opt, name, getattr(opt, name))
        else:
            with pytest.raises(AttributeError, match=name):
                setattr(opt, name, 0.5)


def test_a_subclass_with_arguments_of_its_own_may_keep_them(model: nn.Module) -> None:
    class Mine(crsam.LookSAM):
        def __init__(self, base: SGD, alpha: float) -> None:
            super().__init__(base, alpha=alpha)
            self.alpha = alpha

    assert Mine(sgd(model), 0.3).alpha == 0.3


def test_an_option_of_two_parts_is_told_to_both(model: nn.Module) -> None:
    opt = crsam.ESAM(sgd(model))
    with pytest.raises(AttributeError, match="the ascent and the schedule") as told:
        opt.share = 0.25
    exec(str(told.value).split(": ", 1)[1], {"opt": opt, "dataclasses": dataclasses})
    assert (opt.ascent.share, opt.schedule.share) == (0.25, 0.25)  # type: ignore[attr-defined]


def test_a_part_gives_way_to_one_of_its_kind_that_leaves_the_groups_alone(
    model: nn.Module,
) -> None:
    opt = crsam.CRSAM(sgd(model))
    with pytest.raises(AttributeError, match=r"rho lives in the .* groups"):
        opt.ascent = Gradient(5.0)
    with pytest.raises(AttributeError, match=r"alpha lives in the .* groups"):
        opt.objective = dataclasses.replace(opt.objective, alpha=0.5)
    for other in (RandomTensors(0.1), "hello", None):
        with pytest.raises(ValueError, match="the ascent is a Gradient, and stays one"):
            opt.ascent = other  # type: ignore[assignment]
    with pytest.raises(ValueError, match="trust"):
        opt.objective = dataclasses.replace(opt.objective, trust=-1.0)
    mixed = crsam.SharpnessAware(sgd(model), Gradient(0.1), Weighted(), EveryK(5))
    with pytest.raises(ValueError, match="EveryK reuses the surrogate gradient"):
        mixed.objective = Weighted(decoupled=True)
    assert opt.objective.trust == 0.1  # type: ignore[attr-defined]
    assert opt.ascent == Gradient(0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_norm", -1.0), ("scope", "foo"), ("warmup", -1), ("seed", 0.5), ("model", "hello")],
)
def test_what_the_constructor_refuses_is_refused_later_too(
    model: nn.Module, name: str, value: Any
) -> None:
    opt = crsam.CRSAM(sgd(model))
    before = getattr(opt, name)
    with pytest.raises(ValueError, match=name):
        setattr(opt, name, value)
    assert getattr(opt, name) == before


def test_a_group_cannot_reuse_what_is_not_kept(model: nn.Module) -> None:
    groups = [{"params": [model.weight]}, {"params": [model.bias], "reuse": 0.7}]
    crsam.LookSAM(SGD(copy.deepcopy(groups), lr=0.1), alpha=0.1)
    with pytest.raises(ValueError, match="cannot reuse what is not kept"):
        crsam.LookSAM(SGD(groups, lr=0.1), alpha=0)
    keeps, forgets = (crsam.LookSAM(sgd(model), alpha=alpha) for alpha in (0.7, 0.0))
    with pytest.raises(ValueError, match="cannot reuse what is not kept"):
        forgets.load_state_dict(keeps.state_dict())
    assert forgets.param_groups[0]["reuse"] == 0


def test_groups_that_are_added_later_are_checked_like_the_first(model: nn.Module) -> None:
    opt = crsam.SAM(sgd(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="maximize=True is not supported"):
        opt.add_param_group({"params": model.parameters(), "maximize": True})
    complex_ = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    for params in (complex_, [complex_], [("its name", complex_)]):
        with pytest.raises(ValueError, match="complex parameters"):
            opt.add_param_group({"params": params})
    with pytest.raises(TypeError, match="must be a dict"):
        opt.add_param_group([complex_])  # type: ignore[arg-type]
    assert len(opt.param_groups) == 1
    opt.add_param_group({"params": model.parameters()})
    assert len(opt.param_groups[1]["params"]) == 2


def test_a_subclass_may_keep_an_option_of_its_parts(model: nn.Module) -> None:
    class Mine(crsam.SharpnessAware):
        def __init__(self, base: SGD, k: int) -> None:
            super().__init__(base, Gradient(0.1), schedule=EveryK(k))
            self.k = k

    assert Mine(sgd(model), 3).k == 3


def test_another_bound_that_is_set_as_told_is_heard(model: nn.Module) -> None:
    opt = crsam.CRSAM(sgd(model), warmup=0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for trust in (1e-3, 1e-6):
        opt.objective = dataclasses.replace(opt.objective, trust=trust)
        opt.step(closure)
        length = opt.report["trust_scale"] * opt.report["regularizer"]
        assert float(length) == pytest.approx(trust, rel=1e-3)


def test_a_model_of_which_nothing_is_trained_is_pointed_out(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="another model"):
        crsam.SAM(sgd(model), model=nn.Linear(3, 2))
    crsam.SAM(sgd(model), model=nn.Sequential(model, nn.Linear(2, 2)))
    crsam.SAM(sgd(model), model=nn.BatchNorm1d(2, affine=False))


CLOSURES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "no backward": (lambda m: loss_of(m), r"call loss\.backward\(\)"),
    "returns nothing": (lambda m: backward(loss_of(m)) and None, "must return the loss"),
    "a vector": (lambda m: backward(loss_of(m)).expand(2), r"shape \(2,\)"),
    "detached": (lambda m: loss_of(m).detach(), r"call loss\.backward\(\)"),
}


@pytest.mark.parametrize("case", CLOSURES)
@pytest.mark.parametrize("method", ["sam", "crsam", "looksam"])
def test_wrong_closures(model: nn.Module, case: str, method: str) -> None:
    closure, message = CLOSURES[case]
    opt = crsam.make(method, sgd(model))
    opt.step(lambda: backward(loss_of(model)))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    with pytest.raises(RuntimeError, match=message):
        opt.step(lambda: closure(model))
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert str(opt.state_dict()) == str(state)


@pytest.mark.parametrize("closure", [None, 3.0])
def test_no_closure(model: nn.Module, closure: Any) -> None:
    with pytest.raises(TypeError, match=r"SAM\.step needs a closure"):
        crsam.SAM(sgd(model)).step(closure)


def test_a_gradient_from_before_the_step_does_not_stand_in_for_backward(model: nn.Module) -> None:
    opt = crsam.SAM(sgd(model))
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="left no gradient"):
        opt.step(lambda: loss_of(model))


@pytest.mark.parametrize("method", ["esam", "ssam"])
def test_a_plain_closure_where_samples_are_needed(model: nn.Module, method: str) -> None:
    hyper = {"mask": "fisher"} if method == "ssam" else {}
    opt = crsam.make(method, sgd(model), **hyper)
    with pytest.raises(TypeError, match=r"crsam\.PerSample"):
        opt.step(lambda: backward(loss_of(model)))


def test_per_sample_losses_of_the_wrong_shape(model: nn.Module) -> None:
    opt = crsam.ESAM(sgd(model))
    with pytest.raises(RuntimeError, match="each of the 4 samples"):
        opt.step(crsam.PerSample(lambda part: loss_of(model), 4))
    with pytest.raises(ValueError, match="num_samples"):
        crsam.PerSample(lambda part: loss_of(model), 0)


@pytest.mark.parametrize("method", crsam.methods())
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.1", None, True])
def test_bad_rho(model: nn.Module, method: str, value: Any) -> None:
    with pytest.raises(ValueError, match="rho must"):
        crsam.make(method, sgd(model), rho=value)
    base = SGD([{"params": list(model.parameters()), "rho": value}], lr=0.1)
    with pytest.raises(ValueError, match="rho must"):
        crsam.make(method, base)
    assert base.param_groups[0]["params"] == list(model.parameters()), "the base was harmed"


BAD_PARTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Curvature(alpha=-1), "alpha must not be negative"),
    (lambda: Curvature(beta=math.nan), "beta must be finite"),
    (lambda: Curvature(form="cubic"), "form must be one of 'log', 'linear', got 'cubic'"),  # type: ignore[arg-type]
    (lambda: Curvature(direction="up"), "direction must be one of"),  # type: ignore[arg-type]
    (lambda: Curvature(trust=-0.5), "trust must not be negative"),
    (lambda: Curvature(floor=math.inf), "floor must be finite"),
    (lambda: Weighted(gamma=1.0), "gamma must be below 1"),
    (lambda: EveryK(0), "k must be a whole number of at least 1"),
    (lambda: EveryK(2.5), "k must be a whole number"),  # type: ignore[arg-type]
    (lambda: PartOfBatch(0.0), "share must be above 0 and at most 1"),
    (lambda: PartOfBatch(pick="best"), "pick must be one of"),  # type: ignore[arg-type]
    (lambda: RandomTensors(share=1.5), "share must be above 0 and at most 1"),
    (lambda: FisherMask(sparsity=1.0), "sparsity must"),
    (lambda: DynamicMask(sparsity=-0.1), "sparsity must"),
    (lambda: FisherMask(num_samples=0), "num_samples"),
    (lambda: DynamicMask(period=0), "period"),
    (lambda: DynamicMask(total_steps=0), "total_steps"),
    (lambda: ByGradientNorm(decay=1.5), "decay must be between 0 and 1"),
    (lambda: ByGradientNorm(lambda1=math.nan), "lambda1 must be finite"),
    (lambda: FollowLearningRate(lr_max=0.1, lr_min=0.2), "lr_max must be above lr_min"),
    (lambda: FollowLearningRate(rho_min=-1), "rho_min must not be negative"),
]


@pytest.mark.parametrize(("make", "message"), BAD_PARTS, ids=[m for _, m in BAD_PARTS])
def test_bad_values_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"warmup": -1}, "warmup must be a whole number"),
        ({"warmup": 1.5}, "warmup must be a whole number"),
        ({"max_norm": -1.0}, "max_norm must not be negative"),
        ({"max_norm": 0}, "max_norm must be above 0, or None"),
        ({"model": "resnet"}, "model must be a torch.nn.Module"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_options(model: nn.Module, hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        crsam.SAM(sgd(model), **hyper)


def test_unknown_method_names_the_nearest(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="did you mean 'looksam'"):
        crsam.make("lookSAN", sgd(model))
    with pytest.raises(ValueError, match="there are crsam, sam"):
        crsam.make("adam", sgd(model))
    assert isinstance(crsam.make("Gradient-Norm_Penalty", sgd(model)), crsam.GradientNormPenalty)


def test_bases_that_are_not_built_optimizers(model: nn.Module) -> None:
    for base, got in ((SGD, "SGD"), (model.parameters(), "generator"), (None, "NoneType")):
        with pytest.raises(ValueError, match=f"base must be a built optimizer.*got {got}"):
            crsam.SAM(base)  # type: ignore[arg-type]


def test_a_base_without_parameters() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        crsam.SAM(SGD([{"params": []}], lr=0.1))


def test_nothing_to_train(model: nn.Module) -> None:
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="requires a gradient"):
        crsam.SAM(sgd(model)).step(lambda: loss_of(model))


def test_wrapping_twice_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="already a SAM"):
        crsam.CRSAM(crsam.SAM(sgd(model)))


def test_parts_of_the_wrong_kind(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"ascent must be one of Adaptive, .*Gradient"):
        crsam.SharpnessAware(sgd(model), Curvature())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="objective must be one of Curvature"):
        crsam.SharpnessAware(sgd(model), Gradient(), EveryK())  # type: ignore[arg-type]


def test_parts_that_cannot_go_together_are_refused_with_the_reason(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"use Weighted\(decoupled=False\)"):
        crsam.SharpnessAware(sgd(model), Gradient(), Weighted(decoupled=True), EveryK())


def test_parts_that_share_a_name_are_refused(model: nn.Module) -> None:
    class Clashing(Ascent):
        group_options = ("alpha",)
        alpha = 0.1

        def offset(self, *args: Any) -> Any: ...

    del Ascent.registered["Clashing"]  # not for the battery
    with pytest.raises(ValueError, match="share the name"):
        crsam.SharpnessAware(sgd(model), Clashing(), Curvature())


@pytest.mark.parametrize("method", ["sam", "crsam", "looksam", "aesam"])
def test_a_step_of_the_base_left_over_from_a_plain_loop(model: nn.Module, method: str) -> None:
    opt = crsam.make(method, sgd(model))
    for k in range(4):
        if k == 2:  # a copy has no hooks of torch's
            model, opt = copy.deepcopy((model, opt))
        opt.step(lambda model=model: backward(loss_of(model)))  # type: ignore[misc]
        before = [p.clone() for p in model.parameters()]
        with pytest.raises(RuntimeError, match="leave out its own step"):
            opt.base.step()
        assert all(map(torch.equal, before, model.parameters()))


OWN_STEPS: dict[str, Callable[[nn.Module, SGD], object]] = {
    "gradients made anew": lambda model, base: (
        base.zero_grad(), backward(loss_of(model)), base.step()),
    "gradients set to 0": lambda model, base: (
        base.zero_grad(set_to_none=False), backward(loss_of(model)), base.step()),
    "gradients of one's own": lambda model, base: (
        [p.grad.copy_(torch.ones_like(p)) for p in model.parameters()], base.step()),  # type: ignore[union-attr]
    "gradients added to": lambda model, base: (backward(loss_of(model)), base.step()),
    "a closure": lambda model, base: base.step(
        lambda: (base.zero_grad(), backward(loss_of(model)))[1].item()),
    "another optimizer": lambda model, base: SGD(model.parameters(), lr=0.1).step(),
}  # fmt: skip


@pytest.mark.parametrize("how", OWN_STEPS)
def test_a_base_may_take_steps_of_its_own_between_ours(model: nn.Module, how: str) -> None:
    base = sgd(model)
    crsam.SAM(base)
    opt = crsam.CRSAM(base)  # its base has been another's before
    for _ in range(2):
        opt.step(lambda: backward(loss_of(model)))
        assert len(base._optimizer_step_pre_hooks) == 1
        before = [p.clone() for p in model.parameters()]
        OWN_STEPS[how](model, base)
        assert not any(map(torch.equal, before, model.parameters()))


def test_a_schedule_may_follow_what_it_has_kept_again(model: nn.Module) -> None:
    class _Again(EveryK):  # a name with _ is not entered among the parts
        tensor_state = ("last",)

        def after_full_step(self, context: StepContext, g_0: Any, surrogate: Any) -> Any:
            context.keep("last", surrogate)
            return surrogate

        def after_cheap_step(self, context: StepContext, grads: Any) -> Any:
            return context.recall("last")

    opt = crsam.SharpnessAware(sgd(model), Gradient(), None, _Again(3))
    for _ in range(4):
        opt.step(lambda: backward(loss_of(model)))


class KeepsAll(SGD):
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


def test_nothing_is_left_on_a_base_that_pickles_all_it_has(model: nn.Module) -> None:
    base = KeepsAll(model.parameters(), lr=0.1)
    before = set(vars(base))
    crsam.SAM(base).step(lambda: backward(loss_of(model)))
    assert set(vars(base)) == before


def test_a_base_that_has_no_hooks_is_stepped_all_the_same(model: nn.Module) -> None:
    class Proxy(SGD):
        def __init__(self, inner: SGD) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if name in ("inner", "_optimizer_step_pre_hooks"):
                raise AttributeError(name)
            return getattr(self.inner, name)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step(closure)

    opt = crsam.SAM(Proxy(sgd(model)))
    before = [p.clone() for p in model.parameters()]
    opt.step(lambda: backward(loss_of(model)))
    assert not any(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("way", ["add_param_group", "load_state_dict"])
def test_groups_that_came_in_through_the_base(model: nn.Module, way: str) -> None:
    base = sgd(model)
    plain = base.state_dict()
    opt = crsam.SAM(base)
    if way == "load_state_dict":
        base.load_state_dict(plain)
    else:
        base.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(RuntimeError, match=f"opt.{way}"):
        opt.step(lambda: backward(loss_of(model)))


@dataclasses.dataclass(frozen=True)
class _Momentum(Ascent):  # a name with _ is not entered among the parts
    rho: float = 0.1
    lists: bool = True
    group_options: ClassVar[tuple[str, ...]] = ("rho",)

    @property
    def tensor_state(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("slow",) if self.lists else ()

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        old = context.recall("slow") or [torch.zeros_like(p) for p in context.params]
        slow = [0.9 * o + g for o, g in zip(old, center.grads, strict=True)]
        context.keep("slow", slow)
        return Offset(slow, context.option("rho"))


def test_what_a_part_keeps_must_be_in_its_memory(model: nn.Module) -> None:
    opt = crsam.SharpnessAware(sgd(model), _Momentum(lists=False))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="keeps 'slow', which is not in its tensor_state"):
        opt.step(lambda: backward(loss_of(model)))
    assert all(map(torch.equal, before.values(), model.state_dict().values()))


def test_a_part_may_climb_along_the_list_that_it_keeps(model: nn.Module) -> None:
    first, *later = (
        crsam.SharpnessAware(sgd(model), _Momentum(), objective)
        for objective in (None, Curvature(), GradientNorm())
    )
    g_0 = torch.autograd.grad(loss_of(model), list(model.parameters()))
    first.step(lambda: backward(loss_of(model)))
    for p, g in zip(model.parameters(), g_0, strict=True):
        torch.testing.assert_close(first.tensor_state[p]["slow"], g)
    for opt in later:
        opt.step(lambda: backward(loss_of(model)))
        opt.step(lambda: backward(loss_of(model)))


@dataclasses.dataclass(frozen=True)
class _AlongTheGradient(Ascent):
    rho: float = 0.1
    group_options: ClassVar[tuple[str, ...]] = ("rho",)

    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        return Offset(center.grads, context.radius_over(context.grad_norm))


@pytest.mark.parametrize("objective", [Curvature(0.5, 0.1, "linear"), GradientNorm(), Weighted()])
def test_an_offset_may_be_made_of_the_gradients_themselves(
    model: nn.Module, objective: Objective
) -> None:
    ends = []
    for ascent in (_AlongTheGradient(), Gradient(0.1)):
        own = copy.deepcopy(model)
        opt = crsam.SharpnessAware(sgd(own), ascent, objective)
        for _ in range(3):
            opt.step(lambda own=own: backward(loss_of(own)))  # type: ignore[misc]
        ends.append(torch.cat([p.flatten() for p in own.parameters()]))
    torch.testing.assert_close(*ends)


def test_a_part_with_the_name_of_one_of_ours_does_not_take_its_place(model: nn.Module) -> None:
    body = {"hyper": ("weight",), "weight": 0.1, "__module__": "of_a_user"}
    theirs = type("Curvature", (Objective,), body)
    try:
        assert Objective.registered["Curvature"] is Curvature
        base = sgd(model)
        crsam.CRSAM(base)
        crsam.SAM(base)
        assert not {"alpha", "beta"} & base.param_groups[0].keys()
    finally:
        del Objective.registered["of_a_user.Curvature"]
    assert theirs is not Curvature
