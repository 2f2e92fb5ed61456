"""The errors that come with a trace are honest; probes can be redrawn and split."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from crsam.curvature.random_vectors import VectorSpace, rademacher
from crsam.errors import UserError
from curvature.cases import Case, exact, mean_cross_entropy, mlp, vectors

SEEDS = 200


def tiny() -> Case:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    return Case(model, vectors((6,)))


def test_standard_error_of_the_trace_is_honest_over_200_seeds() -> None:
    case = tiny()
    truth = case.hessian().trace().item()
    estimates = [
        curvature.hessian_trace(*case.given, num_probes=25, seed=seed) for seed in range(SEEDS)
    ]
    within = sum(abs(e.value - truth) <= 2 * e.stderr for e in estimates) / SEEDS
    assert 0.90 <= within <= 0.98
    mean = sum(e.value for e in estimates) / SEEDS
    spread = math.sqrt(sum((e.value - truth) ** 2 for e in estimates) / SEEDS)
    assert abs(mean - truth) < 3 * spread / math.sqrt(SEEDS)
    assert sum(e.stderr for e in estimates) / SEEDS == pytest.approx(spread, rel=0.15)


def test_standard_error_of_the_frobenius_norm_is_honest_over_seeds() -> None:
    case = tiny()
    truth = case.hessian().norm().item()
    estimates = [
        curvature.hessian_frobenius_norm(*case.given, num_probes=25, seed=seed)
        for seed in range(SEEDS)
    ]
    within = sum(abs(e.value - truth) <= 2 * e.stderr for e in estimates) / SEEDS
    assert 0.90 <= within <= 0.98


def test_a_negative_trace_takes_all_its_probes() -> None:
    case, H = exact("negative trace")
    few, many = (curvature.hessian_trace(*case.given, num_probes=n) for n in (5, 500))
    assert many.value < 0
    assert H.trace() < 0
    assert many.stderr < 0.15 * few.stderr  # the root of a hundred is ten


def test_unequal_batches_weigh_by_their_size() -> None:
    """The same samples in other batches: the same probes, the same trace."""
    case = Case(mlp(), vectors((7, 1, 4)))
    x, y = (torch.cat(parts) for parts in zip(*case.batches))
    split = curvature.hessian_trace(*case.given, num_probes=5)
    whole = curvature.hessian_trace(case.model, case.loss_fn, [(x, y)], num_probes=5)
    assert split == pytest.approx(whole, rel=1e-12)


def test_more_probes_begin_with_the_same_ones() -> None:
    case, H = exact("mlp")
    space = VectorSpace(len(H), torch.float64, torch.device("cpu"))
    forms = [v @ H @ v for v in (rademacher(space, "probe", 7, i) for i in range(9))]
    for count in (2, 9):
        found = curvature.hessian_trace(*case.given, num_probes=count, seed=7)
        assert found.value == pytest.approx((sum(forms[:count]) / count).item(), rel=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_do_not_change_the_frobenius_norm(chunk: int) -> None:
    case, _ = exact("mlp")
    found = curvature.hessian_frobenius_norm(*case.given, num_probes=7, chunk=chunk)
    assert found == pytest.approx(
        curvature.hessian_frobenius_norm(*case.given, num_probes=7), rel=1e-12
    )


def test_a_gradient_that_does_not_bend_has_no_hessian() -> None:
    model = nn.Linear(3, 1).double()
    x = torch.ones(2, 3, dtype=torch.float64)
    found = curvature.hessian_trace(model, lambda model, x: model(x).mean(), [x], num_probes=3)
    assert found == (0.0, 0.0)
    assert curvature.top_eigenvalues(model, lambda model, x: model(x).mean(), [x], k=2) == [0, 0]


def test_a_second_derivative_that_is_not_finite_is_told() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)

    def root(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) + 0.0).abs().pow(1.5).mean()  # bends infinitely at 0

    x = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(UserError, match="second derivative"):
        curvature.hessian_trace(model, root, [x], num_probes=3)
    with pytest.raises(UserError, match="second derivative"):
        curvature.top_eigenvalues(model, root, [x])


def test_graph_of_a_batch_is_gone_before_the_next_is_built() -> None:
    model, saved = mlp(), []
    # What tanh gives is saved for the backward pass: its memory lives as long as the graph.
    model[1].register_forward_hook(
        lambda m, i, out: saved.append(weakref.ref(out.untyped_storage()))
    )

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        assert all(ref() is None for ref in saved)
        return mean_cross_entropy(model, batch)

    batches = vectors((4, 3, 5))
    curvature.hessian_trace(model, loss_fn, batches, num_probes=3)
    curvature.hessian_frobenius_norm(model, loss_fn, batches, num_probes=3, chunk=2)
    curvature.top_eigenvalues(model, loss_fn, batches, k=2)
    curvature.sharpness(model, loss_fn, batches, steps=3)
    assert len(saved) > 20
    assert all(ref() is None for ref in saved)
