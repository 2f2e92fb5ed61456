"""Every named method against its textbook twin: 20 steps in float64 on a conv net with batch norm
and dropout, to 1e-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import crsam
import problems
from reference import TWINS

LOG: dict[str, Any] = {"form": "log", "rho": 0.1, "alpha": 0.1, "beta": 0.01}
LINEAR: dict[str, Any] = {"form": "linear", "rho": 0.1, "alpha": 0.5, "beta": 0.1}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sam", {"rho": 0.1}),
    ("sam", {"rho": 0.2, "warmup": 7}),
    ("asam", {"rho": 0.5, "eta": 0.01}),
    ("rsam", {"rho": 0.1, "sigma": 0.01, "lam": 0.7, "seed": 3, "total_steps": 15}),
    ("rsam", {"rho": 0.1, "sigma": 0.01, "lam": 2.0, "lr_max": 0.1, "lr_min": 0.01, "warmup": 4}),
    ("gsam", {"rho": 0.1, "rho_min": 0.02, "alpha": 0.4, "lr_max": 0.05, "lr_min": 0.01}),
    ("gradientnormpenalty", {"rho": 0.1, "alpha": 0.8}),
    ("esam", {"rho": 0.1, "beta": 0.5, "gamma": 0.5, "seed": 1}),
    ("looksam", {"rho": 0.1, "k": 3, "alpha": 0.7}),
    ("ssam", {"rho": 0.1, "sparsity": 0.5, "mask": "fisher", "period": 3, "num_samples": 5}),
    (
        "ssam",
        {"rho": 0.1, "sparsity": 0.6, "mask": "dynamic", "period": 3, "drop": 0.4, "seed": 2}
        | {"total_steps": 15},
    ),
    ("ssam", {"rho": 0.1, "sparsity": 0.5, "mask": "dynamic", "period": 4, "drop": 0.5}),
    ("aesam", {"rho": 0.1, "lambda1": -0.5, "lambda2": 0.5, "decay": 0.5, "total_steps": 20}),
    ("aesam", {"rho": 0.1, "lambda1": -1.0, "lambda2": 1.0, "decay": 0.9}),
    ("friendlysam", {"rho": 0.1, "sigma": 1.0, "decay": 0.9}),
    ("wsam", {"rho": 0.05, "gamma": 0.9}),
    ("wsam", {"rho": 0.05, "gamma": 0.6, "decoupled": True}),
    ("crsam", {**LOG, "trust": 0.5, "warmup": 0}),
    ("crsam", {**LOG, "trust": None, "alpha": 0.001, "warmup": 5}),
    ("crsam", {**LINEAR, "trust": None, "warmup": 0}),
    ("crsam", {**LINEAR, "trust": 0.1, "warmup": 10}),
    ("crsam", {**LOG, "trust": 0.5, "direction": "random", "warmup": 0, "seed": 4}),
    ("crsam", {**LINEAR, "trust": None, "direction": "random", "warmup": 0}),
]
BASES: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {
    "sgd": lambda groups: SGD(groups, lr=0.05),
    "momentum": lambda groups: SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda groups: AdamW(groups, lr=5e-3, weight_decay=1e-2),
}


def name_of(case: Any) -> str:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else str(case)


def trained_pair(
    method: str, hyper: dict[str, Any], base: str, groups: list[dict[str, Any]], num_steps: int = 20
) -> tuple[nn.Module, nn.Module]:
    """The library's model and the twin's, after the same steps; `groups` split the parameters."""

    def split(model: nn.Module) -> list[dict[str, Any]]:
        params = list(model.parameters())
        return [{"params": params[i :: len(groups)], **group} for i, group in enumerate(groups)]

    ours, theirs = problems.conv_net(), problems.conv_net()
    opt = crsam.make(method, BASES[base](split(ours)), model=ours, **hyper)
    twin_hyper = {"num_samples": 1, "drop": 0.0, **hyper} if method == "ssam" else hyper
    twin = TWINS[method](theirs, BASES[base](split(theirs)), problems.cross_entropy, **twin_hyper)
    for t, (x, y) in enumerate(problems.batches(num_steps)):
        torch.manual_seed(t)
        loss = opt.step(problems.samples_of(ours, x, y))
        assert loss.item() == pytest.approx(twin.step(x, y, mask_seed=t), rel=1e-10)
    return ours, theirs


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(
            value, theirs.state_dict()[name], rtol=1e-10, atol=1e-10, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize(("method", "hyper"), CASES, ids=name_of)
def test_method_equals_its_twin(method: str, hyper: dict[str, Any]) -> None:
    assert_same(*trained_pair(method, hyper, "momentum", [{}]))


@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("method", crsam.methods())
def test_method_equals_its_twin_on_other_bases(method: str, base: str) -> None:
    hyper = next(hyper for name, hyper in CASES if name == method)
    assert_same(*trained_pair(method, hyper, base, [{}]))


@pytest.mark.parametrize("method", crsam.methods())
def test_groups_have_their_own_rho(method: str) -> None:
    hyper = next(hyper for name, hyper in CASES if name == method)
    groups: list[dict[str, Any]] = [{"rho": 0.15}, {"lr": 0.02}]
    assert_same(*trained_pair(method, hyper, "momentum", groups))


@pytest.mark.parametrize("form", ["log", "linear"])
def test_groups_have_their_own_alpha_and_beta(form: str) -> None:
    hyper = {**(LOG if form == "log" else LINEAR), "trust": 0.5, "warmup": 0}
    groups: list[dict[str, Any]] = [{"alpha": 0.3}, {"beta": 0.2, "rho": 0.05}]
    assert_same(*trained_pair("crsam", hyper, "momentum", groups))


def test_every_method_has_a_twin() -> None:
    assert set(crsam.methods()) == set(TWINS)
