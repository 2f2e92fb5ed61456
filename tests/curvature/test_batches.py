"""What counts as batches, how large they are, and what is refused."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from crsam import curvature
from crsam._batches import is_one_batch, size_of
from crsam.errors import UserError
from curvature.cases import Case, each_cross_entropy, mean_cross_entropy, mlp, vectors
from curvature.functions import FUNCTIONS, LOSS


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


@dataclass
class Record:
    name: str
    inputs: Tensor
    targets: Tensor


class Plain:
    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.tag = "plain"
        self.inputs, self.targets = inputs, targets


X, Y = vectors((5,))[0]
FORMS = {
    "tuple": ((X, Y), lambda b: b),
    "list": ([X, Y], lambda b: b),
    "dict": ({"x": X, "y": Y}, lambda b: (b["x"], b["y"])),
    "nested": (((X,), {"y": Y}), lambda b: (b[0][0], b[1]["y"])),
    "named tuple": (Pair(X, Y), lambda b: b),
    "dataclass": (Record("five", X, Y), lambda b: (b.inputs, b.targets)),
    "object": (Plain(X, Y), lambda b: (b.inputs, b.targets)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_may_have_any_form(form: str) -> None:
    batch, unpack = FORMS[form]
    assert size_of(batch) == 5
    model, other = mlp(), vectors((2,))[0]

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return mean_cross_entropy(model, batch if batch is other else unpack(batch))

    found = curvature.gradient_norm(model, loss_fn, [batch, other])
    expected = curvature.gradient_norm(model, mean_cross_entropy, [(X, Y), other])
    assert found == expected


@pytest.mark.parametrize("form", [form for form in FORMS if form != "nested"])
def test_a_single_batch_stands_for_a_list_of_it(form: str) -> None:
    batch, unpack = FORMS[form]
    assert is_one_batch(batch)
    model = mlp()

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return mean_cross_entropy(model, unpack(batch))

    assert curvature.gradient_norm(model, loss_fn, batch) == curvature.gradient_norm(
        model, mean_cross_entropy, [(X, Y)]
    )


def test_a_list_of_tensors_that_are_alike_is_a_list_of_batches() -> None:
    model = nn.Linear(4, 1).double()
    parts = [X[:1], X[1:]]
    found = curvature.gradient_norm(model, lambda m, x: m(x).square().mean(), parts)
    whole = curvature.gradient_norm(model, lambda m, x: m(x).square().mean(), X)
    assert found == pytest.approx(whole, rel=1e-12)


def test_size_of_weighs_batches_as_it_says() -> None:
    """Such as the tokens that count in each sequence of a padded batch."""
    case = Case(mlp(), vectors((4, 2)))
    counts = {4: 1, 2: 5}
    losses = [mean_cross_entropy(case.model, b) for b in case.batches]
    grads = torch.autograd.grad((1 * losses[0] + 5 * losses[1]) / 6, case.params)
    expected = torch.cat([g.flatten() for g in grads]).norm().item()
    found = curvature.gradient_norm(*case.given, size_of=lambda b: counts[len(b[1])])
    assert found == pytest.approx(expected, rel=1e-10)
    with pytest.raises(UserError, match="size_of must return a number above 0, got 0"):
        curvature.gradient_norm(*case.given, size_of=lambda b: 0)


def test_losses_of_each_sample_weigh_alike() -> None:
    case = Case(mlp(), vectors((4, 2)))
    found = curvature.gradient_norm(case.model, each_cross_entropy, case.batches)
    assert found == pytest.approx(curvature.gradient_norm(*case.given), rel=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches is empty"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "batches is empty"),
        (iter([(X, Y)]), "only once"),
        (((X, Y) for _ in range(2)), "only once"),
        (7, "must be a list of batches or a DataLoader, got int"),
        ("data", "must be a list of batches or a DataLoader, got str"),
    ],
)
def test_what_cannot_be_gone_over_is_refused(name: str, batches: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FUNCTIONS[name](mlp(), LOSS, batches)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_models_and_losses_are_refused(name: str) -> None:
    measure = FUNCTIONS[name]
    model, batch = mlp(), (X, Y)
    with pytest.raises(UserError, match="no parameter that requires a gradient"):
        measure(mlp().requires_grad_(False), LOSS, [batch])
    with pytest.raises(UserError, match=r"but 0\.weight is torch\.bfloat16"):
        measure(mlp().bfloat16(), LOSS, [batch])
    if name not in ("pac_bayes_sharpness", "fisher_rao"):  # which do not look at the loss itself
        with pytest.raises(UserError, match=r"loss_fn returned nan at the weights, on batch \d"):
            measure(model, LOSS, [batch, (X * float("nan"), Y)])


def test_losses_and_sizes_that_cannot_be_are_refused() -> None:
    model, batch = mlp(), (X, Y)
    with pytest.raises(UserError, match="must return a tensor, got float"):
        curvature.sharpness(model, lambda m, b: 1.0, [batch])
    with pytest.raises(UserError, match="does not depend on any parameter"):
        curvature.hessian_trace(model, lambda m, b: b[0].mean(), [batch])
    with pytest.raises(UserError, match="a batch, one number, is not known: give size_of"):
        curvature.gradient_norm(model, lambda m, b: m(X).mean(), [torch.ones(())])
    with pytest.raises(UserError, match="a str with no tensor, is not known"):
        curvature.gradient_norm(model, lambda m, b: m(X).mean(), ["text"])


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (curvature.hessian_trace, {"num_probes": 1}, "num_probes must be .* at least 2, got 1"),
        (curvature.hessian_trace, {"num_probes": 2.5}, "num_probes must be a whole number"),
        (curvature.hessian_frobenius_norm, {"chunk": 0}, "chunk must be .* at least 1, got 0"),
        (curvature.top_eigenvalues, {"k": 0}, "k must be .* at least 1"),
        (curvature.top_eigenvalues, {"which": "smallest"}, "'value' or 'magnitude'"),
        (curvature.top_eigenvalues, {"tol": 0}, "tol must be a number above 0"),
        (curvature.spectral_density, {"num_vectors": 1}, "num_vectors must be .* at least 2"),
        (curvature.effective_dimensionality, {"z": 0}, "z must be a number above 0, got 0"),
        (curvature.sharpness, {"rho": -0.1}, "rho must be a number above 0, got -0.1"),
        (curvature.sharpness, {"rho": float("nan")}, "rho must be a number above 0, got nan"),
        (curvature.sharpness, {"steps": 0}, "steps must be .* at least 1, got 0"),
        (curvature.epsilon_sharpness, {"epsilon": 0}, "epsilon must be a number above 0"),
        (curvature.average_sharpness, {"num_draws": 1}, "num_draws must be .* at least 2"),
        (curvature.pac_bayes_sharpness, {"drop": 1.5}, "drop must be below 1, got 1.5"),
        (curvature.generalization_bound, {"delta": 1.0}, "delta must be below 1, got 1.0"),
        (curvature.generalization_bound, {"temperature": 0}, "temperature must be a number above"),
        (curvature.approximation_ratio, {"floor": 0}, "floor must be a number above 0"),
        (curvature.finite_difference_curvature, {"rho": "big"}, "rho must be .* got 'big'"),
    ],
)
def test_bad_numbers_are_refused(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        function(mlp(), LOSS, [(X, Y)], **options)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Augments at random, by torch, by Python, or by a generator of its own."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = {
            "torch": lambda: torch.rand(()),
            "python": random.random,
            "own": lambda: torch.rand((), generator=self.generator),
        }[self.source]()
        return X[index] + shift, Y[index]


@pytest.mark.parametrize("source", ["torch", "python"])
def test_augmentation_by_global_random_numbers_is_the_same_in_every_pass(source: str) -> None:
    loader = DataLoader(Noisy(source), batch_size=2, shuffle=True, drop_last=True)
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [curvature.sharpness(model, LOSS, loader, rho=1e-9, steps=4) for _ in range(2)]
    assert found[0] == found[1]
    assert abs(found[0]) < 1e-7  # were the passes about other samples, it would be a difference


def test_data_that_differ_from_pass_to_pass_are_told() -> None:
    loader = DataLoader(Noisy("own"), batch_size=2)
    with pytest.warns(UserWarning, match="two passes over the batches saw different") as caught:
        curvature.sharpness(mlp(), LOSS, loader, steps=5)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_loss_that_differs_from_pass_to_pass_is_told() -> None:
    own = torch.Generator().manual_seed(0)

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0] + torch.rand((), generator=own)), batch[1])

    batches = vectors((3, 2))
    with pytest.warns(UserWarning, match="the loss of the same weights was") as caught:
        curvature.hessian_frobenius_norm(mlp(), noisy, batches, num_probes=4, chunk=1)
    assert len(caught) == 1
    assert caught[0].filename == __file__


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y)


def test_a_loader_without_a_length_works() -> None:
    model = mlp()
    loader = DataLoader(Stream(), batch_size=2)
    found = curvature.top_eigenvalues(model, LOSS, loader, progress=True)
    assert found == pytest.approx(curvature.top_eigenvalues(model, LOSS, [(X, Y)]), rel=1e-6)
    trace = curvature.hessian_trace(model, LOSS, loader, num_probes=4, progress=True)
    expected = curvature.hessian_trace(model, LOSS, [(X, Y)], num_probes=4)
    assert trace == pytest.approx(expected, rel=1e-9)
