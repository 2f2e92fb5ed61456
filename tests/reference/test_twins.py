"""The battery over all twins, and the settings in which one method is another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from . import TWINS
from .problems import Polynomial, batch, cross_entropy, network, own_output, same, train, train_base
from .ssam import SSAM

# A setting of every method in which all its parts are at work within a few steps.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("sam", {"rho": 0.1}),
    ("asam", {"rho": 0.5, "eta": 0.01}),
    ("rsam", {"rho": 0.1, "sigma": 0.05, "lam": 0.5, "total_steps": 10}),
    ("gsam", {"rho": 0.1, "rho_min": 0.02, "alpha": 0.4, "lr_max": 0.2, "lr_min": 0.0}),
    ("gradientnormpenalty", {"rho": 0.1, "alpha": 0.8}),
    ("esam", {"rho": 0.1, "beta": 0.5, "gamma": 0.5}),
    ("looksam", {"rho": 0.1, "k": 2, "alpha": 0.7}),
    *(
        (
            "ssam",
            {
                "rho": 0.1,
                "sparsity": 0.5,
                "mask": mask,
                "period": 2,
                "num_samples": 4,
                "drop": 0.5,
                "total_steps": 10,
            },
        )
        for mask in ("fisher", "dynamic")
    ),
    ("aesam", {"rho": 0.1, "lambda1": -0.5, "lambda2": 0.5, "decay": 0.5, "total_steps": 6}),
    ("friendlysam", {"rho": 0.1, "sigma": 1.0, "decay": 0.9}),
    ("wsam", {"rho": 0.1, "gamma": 0.6, "decoupled": False}),
    ("wsam", {"rho": 0.1, "gamma": 0.6, "decoupled": True}),
    *(
        (
            "crsam",
            {
                "rho": 0.1,
                "alpha": 0.1,
                "beta": 0.01,
                "form": form,
                "trust": 0.5,
                "direction": direction,
            },
        )
        for form in ("log", "linear")
        for direction in ("gradient", "random")
    ),
]

SAM_IN_DISGUISE: list[tuple[str, dict[str, Any]]] = [
    ("gsam", {"rho_min": 0.0, "alpha": 0.0, "lr_max": 0.1, "lr_min": 0.0}),
    ("gradientnormpenalty", {"alpha": 1.0}),
    ("esam", {"beta": 1.0, "gamma": 1.0}),
    ("looksam", {"k": 1, "alpha": 0.7}),
    ("ssam", {"sparsity": 0.0, "mask": "fisher", "period": 1, "num_samples": 4, "drop": 0.5}),
    ("ssam", {"sparsity": 0.0, "mask": "dynamic", "period": 1, "num_samples": 4, "drop": 0.5}),
    ("aesam", {"lambda1": -1e9, "lambda2": -1e9, "decay": 0.9}),
    ("friendlysam", {"sigma": 0.0, "decay": 0.9}),
    ("wsam", {"gamma": 0.5}),
    ("crsam", {"alpha": 0.0, "beta": 0.0, "form": "log", "trust": None}),
    ("crsam", {"alpha": 0.0, "beta": 0.0, "form": "linear", "trust": 0.5}),
    ("crsam", {"alpha": 9.0, "beta": 9.0, "form": "linear", "trust": 0.0, "direction": "random"}),
]


@pytest.mark.parametrize(("name", "hyper"), SAM_IN_DISGUISE)
def test_method_without_its_own_part_is_sam(name: str, hyper: dict[str, Any]) -> None:
    expected, model = network(), network()
    train(expected, "sam", rho=0.2)
    train(model, name, rho=0.2, **hyper)
    same(model, expected)


@pytest.mark.parametrize("name", ["sam", "crsam"])
def test_without_radius_is_base(name: str) -> None:
    expected, model = network(), network()
    train_base(expected)
    extra: dict[str, Any] = (
        {} if name == "sam" else {"alpha": 0.1, "beta": 0.01, "form": "log", "trust": None}
    )
    train(model, name, rho=0.0, **extra)
    same(model, expected)


def test_aesam_that_never_pays_is_base() -> None:
    expected, model = network(), network()
    train_base(expected)
    train(model, "aesam", rho=0.2, lambda1=1e9, lambda2=1e9, decay=0.9)
    same(model, expected)


@pytest.mark.parametrize(("name", "hyper"), SETTINGS)
def test_buffers_move_and_loss_is_as_in_one_forward_at_the_first_point(
    name: str, hyper: dict[str, Any]
) -> None:
    model = network()
    twin = train(model, name, num_steps=6, warmup=3, **hyper)
    ordinary = copy.deepcopy(model)
    twin.generator = torch.Generator().manual_seed(twin.seed * 1_000_003 + twin.t)
    for p, value in zip(ordinary.parameters(), twin.split(twin.first_point(twin.weights()))):
        p.data.copy_(value)
    torch.manual_seed(7)
    inputs, targets = batch(7)
    loss = cross_entropy(ordinary(inputs), targets).mean().item()

    assert twin.step(inputs, targets, mask_seed=7) == pytest.approx(loss, rel=1e-14)
    assert model.get_buffer("1.num_batches_tracked").item() == 7
    for (_, moved), (_, expected) in zip(
        model.named_buffers(), ordinary.named_buffers(), strict=True
    ):
        torch.testing.assert_close(moved, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "hyper"), SETTINGS)
def test_unused_parameter_is_left_alone(name: str, hyper: dict[str, Any]) -> None:
    model = network(num_unused=1)
    train(model, name, **hyper)
    assert model.unused0.grad is None
    assert torch.equal(model.unused0, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(("name", "hyper"), SETTINGS)
def test_same_seed_same_weights(name: str, hyper: dict[str, Any]) -> None:
    one, other = network(), network()
    train(one, name, seed=4, **hyper)
    train(other, name, seed=4, **hyper)
    same(one, other)


def test_unknown_and_missing_hyperparameters_are_refused() -> None:
    base = torch.optim.SGD((model := Polynomial()).parameters(), lr=1.0)
    with pytest.raises(TypeError, match=r"unknown \['eta'\], missing \['rho'\]"):
        TWINS["sam"](model, base, own_output, eta=0.1)


def test_own_rho_of_adadelta_is_not_a_radius() -> None:
    model = network()
    base = torch.optim.Adadelta(model.parameters(), rho=0.9)
    twin = TWINS["sam"](model, base, cross_entropy, rho=0.2)
    assert twin.of_group("rho") == [0.2] * 6


@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_ssam_mask_is_full_until_renewed_and_then_sparse(mask: str) -> None:
    hyper: dict[str, Any] = {
        "rho": 0.1,
        "sparsity": 0.7,
        "mask": mask,
        "num_samples": 4,
        "drop": 0.5,
    }
    twin = train(network(), "ssam", num_steps=3, period=3, **hyper)
    assert isinstance(twin, SSAM)
    num_weights = twin.M.numel()
    assert twin.M.sum() == num_weights
    twin.step(*batch(3), mask_seed=3)
    assert twin.M.sum() == round(0.3 * num_weights)


def test_fisher_mask_leaves_out_weights_without_information() -> None:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    hyper: dict[str, Any] = {"rho": 0.1, "sparsity": 0.9, "mask": "fisher", "period": 1}
    twin = SSAM(model, base, lambda output, _: output[:, 0], num_samples=2, drop=0.5, **hyper)
    twin.step(*batch(), mask_seed=0)
    twin.step(*batch(), mask_seed=0)
    # This loss never reads the rows of the last weight after the first.
    last = twin.split(twin.M)[4]
    assert last[1:].sum() == 0
    assert twin.M.sum() == round(0.1 * twin.M.numel())
