"""The mean loss is the same function of the weights in every pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam import curvature
from curvature.cases import Case, conv_net, flat, images, mean_cross_entropy, mlp, vectors


class Masked(nn.Module):
    """A net whose dropout masks are given, batch by batch."""

    def __init__(self, net: nn.Sequential, masks: list[Tensor]) -> None:
        super().__init__()
        self.net, self.masks, self.calls = net, masks, 0

    def forward(self, x: Tensor) -> Tensor:
        mask = self.masks[self.calls % len(self.masks)]
        self.calls += 1
        return self.net[3](self.net[1](self.net[0](x)) * mask)


def dropout_net() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def test_dropout_is_measured_with_one_mask_a_batch() -> None:
    net, batches, masks = dropout_net(), vectors((5, 3, 4)), []
    hook = net[2].register_forward_hook(lambda m, i, out: masks.append(out / i[0]))
    loss_fn = Case(net, batches).loss_fn
    top = curvature.top_eigenvalues(net, loss_fn, batches, k=2)
    assert len(masks) > 6
    for i, mask in enumerate(masks):
        assert torch.equal(mask == 0, masks[i % 3] == 0)
    assert 0 < sum((m == 0).sum() for m in masks[:3]) < sum(m.numel() for m in masks[:3])
    hook.remove()

    fixed = Case(Masked(net, [(m != 0).double() / 0.6 for m in masks[:3]]), batches)
    H = fixed.hessian()
    assert top == pytest.approx(torch.linalg.eigvalsh(H).flip(0)[:2].tolist(), rel=1e-6)
    v = [torch.ones_like(p) for p in net.parameters()]
    product = curvature.hessian_vector_product(net, loss_fn, batches, v)
    torch.testing.assert_close(flat(product), H @ flat(v), rtol=1e-9, atol=1e-11)
    fixed.model.calls = 0
    norm = curvature.gradient_norm(net, loss_fn, batches)
    assert norm == pytest.approx(fixed.gradient().norm().item(), rel=1e-10)


def test_masks_differ_between_batches_and_are_the_same_in_all_functions() -> None:
    net, masks = dropout_net(), []
    net[2].register_forward_hook(lambda m, i, out: masks.append((out == 0).flatten().tolist()))
    batch = vectors((8,))[0]
    given = (net, Case(net, []).loss_fn, [batch, batch])
    curvature.gradient_norm(*given)
    first, second = masks
    assert first != second
    masks.clear()
    torch.manual_seed(9)
    curvature.hessian_trace(*given, num_probes=3, seed=5)
    count = masks.index(second)
    assert masks == [first] * count + [second] * (len(masks) - count)
    assert count > 0


def test_batch_norm_in_training_sees_the_statistics_of_the_batch() -> None:
    """Running statistics that are wrong do not matter, and are not put right."""
    model, batches = conv_net(), images((6, 3))
    given = (model, Case(model, []).loss_fn, batches)
    before = curvature.top_eigenvalues(*given)
    model[1].running_var.fill_(100.0)
    assert curvature.top_eigenvalues(*given) == before
    assert (model[1].running_var == 100).all()
    assert model[1].num_batches_tracked == 0
    assert curvature.top_eigenvalues(model.eval(), *given[1:]) != pytest.approx(before, rel=0.1)


class Drifting(nn.Linear):
    """Its scale is a buffer that every forward pass moves, as spectral norm does in training."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.scale * 1.1
        return self.scale * super().forward(x)


def test_a_buffer_that_each_pass_moves_starts_from_the_same_value() -> None:
    case = Case(Drifting().double(), vectors((5, 4)))
    losses: list[float] = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        losses.append(loss.item())
        return loss

    curvature.top_eigenvalues(case.model, loss_fn, case.batches, k=2)
    assert losses[0::2] == [losses[0]] * (len(losses) // 2)
    assert losses[1::2] == [losses[1]] * (len(losses) // 2)


def test_autocast_of_the_caller_does_not_reach_the_model() -> None:
    case = Case(mlp().float(), [(x.float(), y) for x, y in vectors((5, 3))])
    expected = curvature.gradient_norm(*case.given)
    with torch.autocast("cpu", torch.bfloat16):
        assert curvature.gradient_norm(*case.given) == expected
        assert torch.is_autocast_enabled("cpu")


def test_a_single_batch_is_run_once_for_all_products() -> None:
    case, calls = Case(mlp(), vectors((5,))), []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        return case.loss_fn(model, batch)

    curvature.top_eigenvalues(case.model, loss_fn, case.batches, k=2)
    assert len(calls) == 1


def test_float32_gives_nearly_what_float64_gives() -> None:
    case = Case(mlp(), vectors((5, 3)))
    single = Case(mlp().float(), [(x.float(), y) for x, y in case.batches])
    for function in (curvature.gradient_norm, curvature.sharpness):
        assert function(*single.given) == pytest.approx(function(*case.given), rel=1e-4)
    ours, exact = (curvature.hessian_trace(*c.given, num_probes=9) for c in (single, case))
    assert ours == pytest.approx(exact, rel=1e-4)
    ours, exact = (curvature.top_eigenvalues(*c.given, k=3) for c in (single, case))
    assert ours == pytest.approx(exact, rel=1e-4)


def test_parameters_of_both_widths_are_measured_together() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())
    model[0].register_forward_hook(lambda m, i, out: out.double())
    batches = [(x.float(), y) for x, y in vectors((5, 3))]
    found = curvature.top_eigenvalues(model, Case(model, []).loss_fn, batches, k=2, tol=1e-4)
    double = Case(model.double(), [(x.double(), y) for x, y in batches])
    assert found == pytest.approx(curvature.top_eigenvalues(*double.given, k=2), rel=1e-4)


@pytest.mark.parametrize("name", ["sharpness", "average_sharpness", "finite_difference_curvature"])
def test_embeddings_with_a_max_norm_are_perturbed_like_others(name: str) -> None:
    """Each pass puts their weights back, because a forward pass may scale them down."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 3)).double()
    limited = copy.deepcopy(plain)
    limited[0].max_norm = 100.0  # larger than any row
    words = [torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, 1]])]
    batches = [(x, torch.arange(len(x))) for x in words]
    before = limited[0].weight.clone()
    found, expected = (
        getattr(curvature, name)(model, mean_cross_entropy, batches) for model in (limited, plain)
    )
    assert found == expected
    assert torch.equal(limited[0].weight, before)
