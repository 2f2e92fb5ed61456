"""The wrapper: groups, state and checkpoints shared with the base optimizer."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, AdamW, RMSprop

import crsam
import problems
from crsam.optim import Gradient, SurrogateGap


def train(model: nn.Module, opt: torch.optim.Optimizer, num: int = 3, first: int = 0) -> None:
    for t, (x, y) in enumerate(list(problems.batches(first + num))[first:], start=first):
        torch.manual_seed(t)
        opt.step(problems.closure_of(model, opt, x, y))


def make(model: nn.Module, method: str = "crsam", **hyper: Any) -> crsam.SharpnessAware:
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return crsam.make(method, base, model=model, **hyper)


def test_groups_and_state_are_the_bases_own() -> None:
    model = problems.conv_net()
    opt = make(model)
    assert opt.param_groups is opt.base.param_groups
    train(model, opt)
    assert opt.state is opt.base.state
    assert all("momentum_buffer" in opt.state[p] for p in model.parameters())
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.param_groups is opt.base.param_groups
    assert opt.state is opt.base.state


def test_a_base_that_has_been_training_keeps_its_state() -> None:
    model = problems.conv_net()
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, base)
    momentum = [base.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    opt = crsam.SAM(base)
    for p, before in zip(model.parameters(), momentum):
        assert torch.equal(opt.state[p]["momentum_buffer"], before)


def test_a_second_wrapper_of_the_same_base_takes_its_own_hyper_parameters() -> None:
    model = problems.conv_net()
    base = SGD(model.parameters(), lr=0.05)
    train(model, crsam.SAM(base, rho=0.05, model=model))
    opt = crsam.SAM(base, rho=0.2)
    assert opt.param_groups[0]["rho"] == 0.2
    assert opt.param_groups[0]["crsam_step"] == 0


def test_groups_added_later_join_in() -> None:
    model, head = problems.conv_net(), nn.Linear(3, 3).double()
    opt = make(model, "friendlysam")
    train(model, opt, 2)
    opt.add_param_group({"params": head.parameters(), "rho": 0.3})
    assert [g["rho"] for g in opt.param_groups] == [0.05, 0.3]
    assert opt.param_groups[1]["crsam_step"] == 2
    whole = nn.Sequential(model, head)
    before = head.weight.detach().clone()
    train(whole, opt, 2)
    assert not torch.equal(head.weight, before)
    with pytest.raises(ValueError, match="rho must not be negative"):
        opt.add_param_group({"params": nn.Linear(2, 2).parameters(), "rho": -1.0})
    assert len(opt.param_groups) == 2


def test_a_checkpoint_of_the_plain_base_can_be_taken_up() -> None:
    model = problems.conv_net()
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, base)
    opt = make(model, rho=0.2)
    opt.load_state_dict(base.state_dict())
    assert opt.param_groups[0]["rho"] == 0.2
    assert opt.param_groups[0]["crsam_step"] == 0
    for p in model.parameters():
        assert torch.equal(opt.state[p]["momentum_buffer"], base.state[p]["momentum_buffer"])
    train(model, opt)


def test_a_checkpoint_can_be_taken_up_by_the_plain_base_and_then_by_another_method() -> None:
    model = problems.conv_net()
    opt = make(model, "friendlysam", rho=0.3)
    train(model, opt)
    plain = SGD(model.parameters(), lr=1.0, momentum=0.9)
    plain.load_state_dict(opt.state_dict())
    train(model, plain)
    momentum = [plain.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    other = crsam.LookSAM(plain, k=2, model=model)
    for p, before in zip(model.parameters(), momentum):
        assert torch.equal(other.state[p]["momentum_buffer"], before)
    assert other.param_groups[0]["rho"] == 0.05  # its own
    assert other.param_groups[0]["lr"] == 0.05
    assert other.param_groups[0]["crsam_step"] == 0
    assert "sigma" not in other.param_groups[0]
    train(model, other)
    kept = {key for entry in other.state_dict()["state"].values() for key in entry}
    assert kept == {"momentum_buffer", "crsam_reused"}  # not Friendly's mean gradient


ALIKE = [("sam", "esam"), ("esam", "sam")]
"""Both hold ρ and the count of steps only."""


@pytest.mark.parametrize("base", [partial(SGD, momentum=0.9), RMSprop, Adadelta])
@pytest.mark.parametrize("method", crsam.methods())
def test_the_checkpoint_of_another_method_is_refused_and_changes_nothing(
    method: str, base: Any
) -> None:
    """The bases have an α or a ρ of their own, where ours go by other names."""
    x, y = next(iter(problems.batches(1)))
    saved, opts = {}, {}
    for name in crsam.methods():
        model = problems.conv_net()
        opts[name] = crsam.make(name, base(model.parameters(), lr=0.05), model=model)
        opts[name].step(problems.samples_of(model, x, y))
        saved[name] = opts[name].state_dict()
    opt, before = opts[method], str(opts[method].state_dict())
    for name in crsam.methods():
        if name != method and (name, method) not in ALIKE:
            told = r"of another method.*base\.load_state_dict|lacks crsam_mask, without which SSAM"
            with pytest.raises(ValueError, match=told):
                opt.load_state_dict(saved[name])
    assert str(opt.state_dict()) == before
    for name in [method, *(one for one, other in ALIKE if other == method)]:
        opt.load_state_dict(saved[name])


def test_the_checkpoint_of_another_method_is_told_by_what_it_holds() -> None:
    opt = make(problems.conv_net(), "sam")
    told = "it holds alpha, beta, rho, where SAM has rho"
    with pytest.raises(ValueError, match=told):
        opt.load_state_dict(make(problems.conv_net(), "crsam").state_dict())


@pytest.mark.parametrize("kind", [SGD, RMSprop, Adadelta])
def test_what_earlier_methods_left_in_a_base_is_no_part_of_a_checkpoint(kind: Any) -> None:
    model = problems.conv_net()
    base = kind(model.parameters(), lr=0.05)
    group = base.param_groups[0]
    group.update({name: 0.7 for name in ("alpha", "rho") if name in group})  # the base's own
    plain = dict(group)
    for method in ("gsam", "aesam", "crsam", "sam"):
        opt = crsam.make(method, base, model=model)
        train(model, opt, 1)
    rho = "crsam_rho" if "rho" in plain else "rho"
    assert base.param_groups[0] == plain | {rho: 0.05, "crsam_step": 1}
    other = crsam.SAM(kind(model.parameters(), lr=0.05))
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["crsam_step"] == 1


def test_a_groups_own_entry_may_have_a_name_that_another_method_uses() -> None:
    def opt() -> crsam.SharpnessAware:
        groups = [{"params": model.parameters(), "sigma": "mine"}]
        return crsam.SAM(SGD(groups, lr=0.05), model=model)

    model = problems.conv_net()
    saved = opt()
    train(model, saved, 1)
    other = opt()
    other.load_state_dict(saved.state_dict())
    assert other.param_groups[0]["sigma"] == "mine"
    assert other.param_groups[0]["crsam_step"] == 1


def test_a_checkpoint_for_other_parameters_is_refused_and_changes_nothing() -> None:
    model = problems.conv_net()
    opt = make(model, "friendlysam")
    train(model, opt)
    before = str(opt.state_dict())
    wrong = make(nn.Linear(2, 2), "friendlysam").state_dict()
    with pytest.raises(ValueError, match="size of optimizer's group"):
        opt.load_state_dict(wrong)
    assert str(opt.state_dict()) == before


def test_loading_does_not_share_memory_with_the_checkpoint() -> None:
    model = problems.conv_net()
    opt = make(model, "friendlysam")
    train(model, opt)
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    for entry in saved["state"].values():
        entry["crsam_mean_gradient"].fill_(torch.nan)
    train(model, opt)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_as_the_original(how: Any) -> None:
    model = problems.conv_net()
    opt = make(model, "friendlysam")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    train(model, opt)
    scheduler.step()
    model_2, opt_2 = how((model, opt))
    assert opt_2.model is model_2
    train(model, opt, first=3)
    train(model_2, opt_2, first=3)
    for a, b in zip(model.parameters(), model_2.parameters()):
        assert torch.equal(a, b)


def test_hooks_run_once_per_step() -> None:
    model = problems.conv_net()
    opt = make(model)
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("pre"))
    opt.register_step_post_hook(lambda *_: calls.append("post"))
    opt.base.register_step_pre_hook(lambda *_: calls.append("base"))
    train(model, opt, 1)
    assert calls == ["pre", "base", "post"]


def test_a_scheduler_on_the_base_works_too() -> None:
    model = problems.conv_net()
    opt = make(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt.base, 0.5)
    train(model, opt, 1)
    scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.025


def test_rho_follows_the_learning_rate_and_is_never_negative() -> None:
    model = problems.conv_net()
    base = SGD(model.parameters(), lr=0.1)
    opt = crsam.GSAM(base, rho=0.2, rho_min=0.05, lr_min=0.02, model=model)
    radii = []
    for lr in (0.1, 0.06, 0.02, 0.001):
        base.param_groups[0]["lr"] = lr
        radii.append(opt.group_options()["rho"][0])
    assert radii == pytest.approx([0.2, 0.125, 0.05, 0.05])


def test_repr_names_the_parts() -> None:
    opt = make(problems.conv_net(), "gsam")
    assert repr(opt).startswith("GSAM(Gradient(rho=0.05), SurrogateGap(alpha=0.4), EveryStep()")


def test_bf16_weights_come_back_bit_for_bit() -> None:
    """50 steps there and back: restoring by adding and subtracting would drift."""
    model = problems.conv_net(torch.bfloat16)
    opt = crsam.CRSAM(AdamW(model.parameters(), lr=0.0, weight_decay=0.0), warmup=0, model=model)
    before = [p.detach().clone() for p in model.parameters()]
    for x, y in problems.batches(50, torch.bfloat16):
        opt.step(problems.closure_of(model, opt, x, y))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))


def test_parts_given_by_keyword() -> None:
    model = problems.conv_net()
    base = SGD(model.parameters(), lr=0.05)
    parts: dict[str, Any] = {"ascent": Gradient(0.1), "objective": SurrogateGap(0.2)}
    opt = crsam.SharpnessAware(base, **parts, model=model)
    train(model, opt, 1)
    assert opt.param_groups[0]["alpha"] == 0.2


def test_the_parts_of_a_step_draw_different_numbers() -> None:
    model = problems.conv_net()
    context = crsam.SAM(SGD(model.parameters(), lr=0.1)).new_context()
    first, second, third = (context.draw(torch.randn, stream)[0] for stream in range(3))
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)
    assert not torch.equal(second, third)


def test_a_checkpoint_holds_nothing_that_no_part_remembers_any_more() -> None:
    model = problems.conv_net()
    opt = make(model, every=5)
    train(model, opt)
    opt.objective = replace(opt.objective, every=1)  # type: ignore[type-var]
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.param_groups[0]["crsam_step"] == 3
    train(model, opt, first=3)


def test_hooks_of_checkpoints_are_called_as_torch_calls_them() -> None:
    model = problems.conv_net()
    for opt in (make(model), SGD(model.parameters(), lr=0.1)):
        seen: list[str] = []

        def note(name: str, *given: Any, seen: list[str] = seen) -> None:
            seen.append(name)

        def marked(opt: Any, state: dict[str, Any]) -> dict[str, Any]:
            return {**state, "mark": 1}

        def unmarked(opt: Any, state: dict[str, Any]) -> None:
            del state["mark"]

        opt.register_state_dict_pre_hook(partial(note, "before saving"))
        opt.register_state_dict_post_hook(marked)
        opt.register_load_state_dict_pre_hook(unmarked)
        opt.register_load_state_dict_post_hook(partial(note, "after loading"))
        saved = opt.state_dict()
        assert saved["mark"] == 1
        opt.load_state_dict(saved)
        assert saved["mark"] == 1
        assert seen == ["before saving", "after loading"]
