"""v · H v by a Taylor series is that of the exact Hessian. Other losses use the product."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam import curvature
from crsam.curvature.mean_loss import BatchLoss, MeanLoss
from crsam.curvature.taylor import ProductForm, TaylorForm, quadratic_forms, rules
from crsam.lab.models import ResNet
from curvature.cases import Case, every_case, exact, images, mean_cross_entropy, mlp, vectors
from lab.models.narrow import NARROW


def forms(case: Case, vector: Tensor | None = None) -> tuple[list[type], float]:
    """The kinds of form that the batches got, and the mean of the forms of `vector`."""
    kinds: list[type] = []
    total, count = 0.0, 0
    with MeanLoss(*case.given) as loss:
        v = loss.unflatten(direction(case) if vector is None else vector)
        form_of = quadratic_forms(loss)

        def add(batch_loss: BatchLoss) -> None:
            nonlocal total, count
            form = form_of(batch_loss)
            kinds.append(type(form))
            total, count = total + batch_loss.size * form(v).item(), count + batch_loss.size

        loss.for_each_batch(add)
    return kinds, total / count


def direction(case: Case) -> Tensor:
    size = sum(p.numel() for p in case.params)
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def by_product(case: Case) -> float:
    """The same through the product, which other tests hold against dense Hessians."""
    v = direction(case)
    parts = [
        part.view(p.shape)
        for part, p in zip(v.split([p.numel() for p in case.params]), case.params)
    ]
    product = curvature.hessian_vector_product(*case.given, parts)
    return sum((a * b).sum().item() for a, b in zip(parts, product))


@every_case
def test_form_is_that_of_the_exact_hessian(name: str) -> None:
    case, H = exact(name)
    v = direction(case)
    kinds, found = forms(case, v)
    assert set(kinds) == {TaylorForm}
    assert found == pytest.approx((v @ H @ v).item(), rel=1e-9, abs=1e-11)


class Words(nn.Module):
    """Embedding, a gated recurrent unit, layer norm, one parameter by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.cell = nn.GRUCell(4, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4, dtype=x.dtype)
        for column in (x.abs() * 2).long().clamp(max=4).unbind(1)[:3]:
            state = self.cell(self.table(column), state)
        return (self.norm(state) * self.scale.exp())[:, :3]


class InPlace(nn.Module):
    """Writes over what it has computed, through views too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).mul_(2)
        h += x.mean()
        h[:, :2] += h[:, 2:4].tanh()
        h[:, 5].add_(h[:, 4].exp())
        return self.second(F.relu_(h))


def layers(*parts: nn.Module) -> Callable[[], Case]:
    return lambda: Case(nn.Sequential(*parts), images((4, 3)))


NETS: dict[str, Callable[[], Case]] = {
    "residual": lambda: Case(ResNet(18, 3, width=2, in_channels=1), images((4, 3))),
    "residual, in evaluation": lambda: Case(
        ResNet(18, 3, width=2, in_channels=1).eval(), images((4,))
    ),
    "pooled": layers(
        nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ),
    "in groups": layers(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ELU(),
        nn.Conv2d(4, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "transposed": layers(
        nn.Conv2d(1, 2, 3),
        nn.Softplus(),
        nn.ConvTranspose2d(2, 2, 2),
        nn.Flatten(),
        nn.Linear(18, 3),
    ),
    "average pool and dropout": layers(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.Mish(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "words": lambda: Case(Words(), vectors((5, 3))),
    "in place": lambda: Case(InPlace(), vectors((5, 3))),
}


@pytest.mark.parametrize("name", NETS)
def test_form_is_that_of_the_product_on_all_kinds_of_layers(name: str) -> None:
    torch.manual_seed(1)
    case = NETS[name]()
    case.model.double()
    kinds, found = forms(case)
    assert set(kinds) == {TaylorForm}
    assert found == pytest.approx(by_product(case), rel=1e-8)


def with_constants(model: nn.Module, batch: Any) -> Tensor:
    """What is detached, or under no_grad, does not move."""
    out = model(batch[0])
    with torch.no_grad():
        target = (model(batch[0]) + 1).softmax(1)
    return (
        F.cross_entropy(out * out.detach().square(), target) + (out - out.detach()).square().mean()
    )


def test_what_is_detached_does_not_move() -> None:
    case = Case(mlp(), vectors((5, 3)), with_constants)
    kinds, found = forms(case)
    assert set(kinds) == {TaylorForm}
    assert found == pytest.approx(by_product(case), rel=1e-10)


class Straight(torch.autograd.Function):
    """Rounds, and has a gradient all the same: a formula that no operation tells."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def rounded(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(Straight.apply(model(batch[0])), batch[1])


def penalty(model: nn.Module, batch: Any) -> Tensor:
    loss = mean_cross_entropy(model, batch)
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + 0.1 * sum(g.square().sum() for g in grads)


def anchored(model: nn.Module, batch: Any) -> Tensor:
    """A term without a slope here, of weights whose values are taken behind autograd's back."""
    loss = mean_cross_entropy(model, batch)
    return loss + sum((p - p.data).square().sum() for p in model.parameters())


def spectral(model: nn.Module, batch: Any) -> Tensor:
    """Complex numbers are not recorded."""
    out = model(batch[0])
    waves = torch.view_as_real(torch.fft.fft(out - out.detach()))
    return mean_cross_entropy(model, batch) + waves.square().sum()


@pytest.mark.parametrize("loss_fn", [rounded, penalty, anchored, spectral])
def test_what_cannot_be_recorded_goes_through_the_product(loss_fn: Any) -> None:
    case = Case(mlp(), vectors((5, 3)), loss_fn)
    kinds, found = forms(case)
    assert set(kinds) == {ProductForm}
    assert found == pytest.approx(by_product(case), rel=1e-10)


def test_the_padding_of_an_embedding_has_no_curvature() -> None:
    """Autograd leaves its row out, forward mode does not, and its gradient is 0 either way."""
    model = nn.Embedding(2, 1, padding_idx=0).double()
    tokens = torch.tensor([[0, 1]])
    found = curvature.hessian_trace(model, lambda m, t: (m(t).sum() - 1) ** 2, [tokens])
    assert found == (2.0, 0.0)


def noisy(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return mean_cross_entropy(model, batch) + (torch.rand_like(out) * out.square()).mean()


def test_what_is_drawn_is_drawn_once() -> None:
    case = Case(mlp(), vectors((5, 3)), noisy)
    kinds, found = forms(case)
    assert set(kinds) == {TaylorForm}
    assert found == pytest.approx(by_product(case), rel=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_a_large_mean_does_not_drown_batch_norm(training: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(12, 3)).train()
    batches = [(x.float() + 100, y) for x, y in images((6,))]
    net(batches[0][0])
    net.train(training)
    wide = copy.deepcopy(net).double()
    exactly = Case(wide, [(x.double(), y) for x, y in batches])
    _, found = forms(Case(net, batches), direction(exactly).float())
    assert found == pytest.approx(forms(exactly)[1], rel=2e-3)


def test_a_rule_with_a_wrong_second_derivative_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(operation: Any, line: Any) -> Any:
        tangents, second = rules.product_and_sum(operation, line)
        return tangents, None if second is None else 1.01 * second

    case, H = exact("mlp")
    v = direction(case)
    monkeypatch.setitem(rules.RULES, torch.ops.aten.addmm.default, wrong)
    kinds, found = forms(case, v)
    assert set(kinds) == {ProductForm}
    assert found == pytest.approx((v @ H @ v).item(), rel=1e-10)


def test_a_rule_with_a_wrong_tangent_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(operation: Any, line: Any) -> Any:
        (tangent,), second = rules.product_and_sum(operation, line)
        return [1.01 * tangent], second

    case, H = exact("mlp")
    v = direction(case)
    monkeypatch.setitem(rules.RULES, torch.ops.aten.addmm.default, wrong)
    kinds, found = forms(case, v)
    assert set(kinds) == {ProductForm}
    assert found == pytest.approx((v @ H @ v).item(), rel=1e-10)


@pytest.mark.parametrize("name", NARROW)
def test_every_model_of_ours_takes_the_fast_way(name: str) -> None:
    narrow = NARROW[name]
    case = Case(narrow.settled(torch.float64), [narrow.batch(torch.float64, num=2)])
    kinds, found = forms(case)
    assert kinds == [TaylorForm]
    assert found == pytest.approx(by_product(case), rel=1e-8)
