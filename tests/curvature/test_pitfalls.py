"""What a sceptic found: losses, models and batches that were measured wrongly without a word."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset

from crsam import curvature, landscape
from crsam.errors import UserError


def cross_entropy(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def each(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data(num: int = 11) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(num, 6).double(), torch.randint(3, (num,))


def test_a_list_that_may_be_one_batch_or_several_is_refused() -> None:
    pairs = TensorDataset(torch.randn(8, 6), torch.randn(8, 6))
    batch = next(iter(DataLoader(pairs, batch_size=4)))
    model = nn.Linear(6, 6)

    def loss(model: Any, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    for measure in (curvature.gradient_norm, landscape.surface):
        with pytest.raises(UserError, match="one batch or 2"):
            measure(model, loss, batch)  # type: ignore[operator]
    curvature.gradient_norm(model, loss, tuple(batch))


def test_what_a_loss_has_under_no_grad_has_no_slope() -> None:
    def focal(model: Any, batch: Any) -> Tensor:
        losses = each(model, batch)
        with torch.no_grad():
            weights = (1 - torch.exp(-losses)) ** 2
        return weights * losses

    model, (x, y) = net(), data()
    params = list(model.parameters())
    slopes = []
    for i in range(len(x)):
        grads = torch.autograd.grad(focal(model, (x[i : i + 1], y[i : i + 1])).sum(), params)
        slopes.append(sum((g * p).sum().item() for g, p in zip(grads, params)) ** 2)
    expected = sum(slopes) / len(slopes)
    assert curvature.fisher_rao(model, focal, [(x, y)]) == pytest.approx(expected, rel=1e-12)


class WrittenOut(nn.Module):
    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        first: Any = model[0]
        original = first.parametrizations.weight
        self.g = nn.Parameter(original.original0.detach().clone())
        self.v = nn.Parameter(original.original1.detach().clone())
        self.bias = nn.Parameter(first.bias.detach().clone())
        self.last = copy.deepcopy(model[2])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.g * self.v / self.v.norm(dim=1, keepdim=True)
        return self.last(torch.tanh(F.linear(x, weights, self.bias)))


def test_weight_norm_has_the_eigenvalues_of_its_formula() -> None:
    model = net()
    weight_norm(model[0])
    before = torch._weight_norm
    found, expected = (
        curvature.top_eigenvalues(m, cross_entropy, [data()], k=3)
        for m in (model, WrittenOut(model))
    )
    assert found == pytest.approx(expected, rel=1e-6)
    assert torch._weight_norm is before


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.GRU(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x)[0][-1])


def test_a_last_batch_of_one_counts_as_one() -> None:
    torch.manual_seed(0)
    model, x, y = Recurrent().double(), torch.randn(7, 9, 3).double(), torch.randint(3, (9,))
    parts = [(x[:, :4], y[:4]), (x[:, 4:8], y[4:8]), (x[:, 8:], y[8:])]
    for measure in (
        lambda b: curvature.gradient_norm(model, each, b),
        lambda b: curvature.fisher_rao(model, each, b, size_of=lambda b: len(b[1])),
        lambda b: landscape.surface(model, each, b, directions=1, x=[0.0]).loss.item(),
    ):
        assert measure(parts) == pytest.approx(measure([(x, y)]), rel=1e-12)


def test_a_size_may_be_a_tensor() -> None:
    (x, y), model = data(), net()
    y[[0, 1, 5]] = -100
    parts = [(x[:4], y[:4]), (x[4:], y[4:])]
    found, expected = (
        curvature.finite_difference_curvature(model, cross_entropy, parts, rho=1e-3, size_of=size)
        for size in (lambda b: (b[1] != -100).sum(), lambda b: int((b[1] != -100).sum()))
    )
    assert found == expected
    assert isinstance(found, float)


def test_float32_says_what_it_cannot_tell() -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 20) * torch.logspace(0, -1.5, 20)
    x[:, 0] = 1000 + 100 * torch.randn(500)
    model, y = nn.Linear(20, 1, bias=False), torch.randn(500, 1)

    def loss(model: Any, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    with pytest.warns(UserWarning, match="use a model in float64"):
        curvature.top_eigenvalues(model, loss, [(x, y)], k=5)
    found = curvature.top_eigenvalues(model.double(), loss, [(x.double(), y.double())], k=5)
    exact = torch.linalg.eigvalsh(2 * x.double().T @ x.double() / 500).flip(0)[:5]
    assert found == pytest.approx(exact.tolist(), rel=1e-5)


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3).double()
        self.register_buffer("mask", torch.ones(1, 6).double().expand(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.mask[0])  # type: ignore[index]


def test_a_buffer_may_be_expanded() -> None:
    model = Expanded()
    found = [curvature.gradient_norm(m, cross_entropy, [data()]) for m in (model, model.inner)]
    assert found[0] == found[1]
    landscape.surface(model, cross_entropy, [data()], directions=1, x=[0.0])


class Bowl(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


def test_where_the_gradient_is_0_a_search_says_that_it_found_nothing() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return 5 * model.w[0] ** 2 + model.w[1] ** 2 + 0 * batch.sum()

    nowhere = [torch.zeros(1)]
    for search in (
        lambda: curvature.sharpness(Bowl(), loss, nowhere, rho=0.1, steps=20),
        lambda: curvature.epsilon_sharpness(Bowl(), loss, nowhere, epsilon=0.1),
    ):
        with pytest.warns(UserWarning, match="leads nowhere higher"):
            assert search() == 0
    assert curvature.sharpness(Bowl(), loss, nowhere, rho=0.1) == 0  # one step of SAM's: as it is


def test_embeddings_with_sparse_gradients_are_measured_like_dense_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3)).double()
    words, targets = torch.randint(7, (9, 2)), torch.randint(3, (9,))
    dense = copy.deepcopy(model)
    dense[0].sparse = False
    for measure in (curvature.gradient_norm, curvature.hessian_trace, curvature.top_eigenvalues):
        found = [measure(m, cross_entropy, [(words, targets)]) for m in (model, dense)]
        assert found[0] == found[1]
    assert model[0].sparse is True
    with pytest.raises(UserError, match="nan"):
        curvature.gradient_norm(model, lambda *_: torch.tensor(float("nan")), [(words, targets)])
    assert model[0].sparse is True
