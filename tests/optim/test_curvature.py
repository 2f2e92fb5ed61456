"""CR-SAM itself: its identities, its guard and bound, its report and its warnings."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import crsam
import problems
from crsam.optim import Curvature, Gradient, SharpnessAware


class Bowl(nn.Module):
    """``L(w) = λ w²/2 + c w⁴/4`` in one weight: every quantity of a step is known exactly."""

    def __init__(self, w: float = 1.0, lam: float = 2.0, quartic: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))
        self.lam, self.quartic = lam, quartic

    def loss(self) -> Tensor:
        return (self.lam * self.w**2 / 2 + self.quartic * self.w**4 / 4).sum()


def step_on(bowl: Bowl, **hyper: Any) -> tuple[float, dict[str, Tensor]]:
    """The surrogate gradient of one CR-SAM step, and its report."""
    opt = crsam.CRSAM(SGD(bowl.parameters(), lr=1e-3), **{"warmup": 0, **hyper})

    def closure() -> Tensor:
        loss = bowl.loss()
        loss.backward()
        return loss

    opt.step(closure)
    assert bowl.w.grad is not None
    return bowl.w.grad.item(), opt.report


def train(model: nn.Module, opt: torch.optim.Optimizer) -> nn.Module:
    for t, (x, y) in enumerate(problems.batches(10)):
        torch.manual_seed(t)
        opt.step(problems.closure_of(model, opt, x, y))
    return model


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("direction", ["gradient", "random"])
def test_curvature_without_weights_is_sam(form: Any, direction: Any) -> None:
    ours, sam = problems.conv_net(), problems.conv_net()
    with pytest.warns(UserWarning, match="paid for nothing"):
        objective = Curvature(0.0, 0.0, form=form, direction=direction)
    base = SGD(ours.parameters(), lr=0.05, momentum=0.9)
    train(ours, SharpnessAware(base, Gradient(0.1), objective, model=ours))
    train(sam, crsam.SAM(SGD(sam.parameters(), lr=0.05, momentum=0.9), rho=0.1, model=sam))
    for a, b in zip(ours.parameters(), sam.parameters()):
        assert torch.equal(a, b)


def test_linear_form_is_the_authors_combination_of_three_gradients() -> None:
    w, rho, alpha, beta, quartic = 1.0, 0.1, 0.5, 0.1, 3.0
    surrogate, _ = step_on(
        Bowl(w, quartic=quartic), rho=rho, alpha=alpha, beta=beta, form="linear", trust=None
    )

    def g(w: float) -> float:
        return 2.0 * w + quartic * w**3

    expected = (1 + alpha + beta) * g(w + rho) + (alpha - beta) * g(w - rho) - 2 * alpha * g(w)
    assert surrogate == pytest.approx(expected, rel=1e-12)


def test_log_form_is_the_gradient_of_the_papers_regularizer() -> None:
    """Against numerical differentiation of ``L(w+ρv) + α log d2 + β log d1``, ``v`` constant."""
    rho, alpha, beta, quartic = 0.1, 0.05, 0.02, 3.0

    def objective(w: float) -> float:
        plus, zero, minus = (Bowl(w + r, quartic=quartic).loss() for r in (rho, 0.0, -rho))
        d_1, d_2 = plus - minus, plus + minus - 2 * zero
        return (plus + alpha * d_2.log() + beta * d_1.log()).item()

    h = 1e-5
    expected = (objective(1.0 + h) - objective(1.0 - h)) / (2 * h)
    surrogate, _ = step_on(
        Bowl(1.0, quartic=quartic), rho=rho, alpha=alpha, beta=beta, form="log", trust=None
    )
    assert surrogate == pytest.approx(expected, rel=1e-6)


def test_report_tells_losses_sharpness_and_curvature() -> None:
    _, report = step_on(Bowl(1.0, lam=2.0), rho=0.1)
    seen = {name: value.item() for name, value in report.items()}
    assert seen["loss"] == pytest.approx(1.0)
    assert seen["grad_norm"] == pytest.approx(2.0)
    assert seen["loss_plus"] == pytest.approx(1.21)
    assert seen["loss_minus"] == pytest.approx(0.81)
    assert seen["sharpness"] == pytest.approx(0.21)
    assert seen["curvature"] == pytest.approx(2.0)  # λ, since the loss is quadratic
    assert seen["dropped_curvature"] == seen["dropped_slope"] == 0


def test_a_negative_difference_is_dropped_and_reported() -> None:
    surrogate, report = step_on(Bowl(1.0, lam=-2.0), rho=0.1, beta=0.0, trust=None)
    assert report["dropped_curvature"] == 1
    assert report["dropped_slope"] == 0  # uphill is still uphill
    assert surrogate == pytest.approx(-2.0 * 0.9)  # g+ alone: uphill of this cap is towards 0


def test_a_difference_within_rounding_is_dropped() -> None:
    bowl = Bowl(1.0, lam=1e-18)
    bowl.loss = lambda: (1.0 + bowl.w - bowl.w.detach() + 1e-18 * bowl.w**2).sum()  # type: ignore[method-assign]
    _, report = step_on(bowl, rho=0.1)
    assert report["dropped_curvature"] == 1


@pytest.mark.parametrize(
    ("dtype", "returned"),
    [
        (torch.float32, lambda loss: loss),
        (torch.float32, lambda loss: loss.item()),
        (torch.float32, lambda loss: loss.double()),
        (torch.float64, lambda loss: loss.item()),
        (torch.bfloat16, lambda loss: loss),
        (torch.float16, lambda loss: loss),
    ],
)
def test_rounding_is_no_curvature_in_whatever_dtype_a_loss_comes(
    dtype: torch.dtype, returned: Callable[[Tensor], Any]
) -> None:
    """A linear loss has none."""
    kept = 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        w, x = nn.Parameter(torch.randn(50, dtype=dtype)), torch.randn(64, 50, dtype=dtype)
        opt = crsam.CRSAM(SGD([w], lr=0.0), warmup=0)

        def closure(w: Tensor = w, x: Tensor = x) -> Any:
            w.grad = None
            loss = (x @ w).mean() + 10
            loss.backward()
            return returned(loss)

        opt.step(closure)
        kept += 1 - opt.report["dropped_curvature"].item()
    assert kept == 0


@pytest.mark.parametrize("num", [1, 4])
def test_nor_is_it_where_the_batch_is_cut(num: int) -> None:
    kept = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        w, x = nn.Parameter(torch.randn(50).bfloat16()), torch.randn(64, 50).bfloat16()
        opt = crsam.CRSAM(SGD([w], lr=0.0), warmup=0)
        micro = crsam.MicroBatches(lambda x, w=w: (x @ w).mean() + 10, list(x.chunk(num)))
        samples = crsam.PerSample(lambda part, w=w, x=x: x[part] @ w + 10, len(x))
        for closure in (micro, samples):
            opt.zero_grad()
            opt.step(closure)
            kept += 1 - opt.report["dropped_curvature"].item()
    assert kept == 0


def test_weights_of_many_bits_among_others_do_not_lift_the_guard() -> None:
    kept = 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        w, b = nn.Parameter(torch.randn(50)), nn.Parameter(torch.zeros((), dtype=torch.float64))
        x = torch.randn(64, 50)
        opt = crsam.CRSAM(SGD([w, b], lr=0.0), warmup=0)

        def closure(w: Tensor = w, b: Tensor = b, x: Tensor = x) -> float:
            w.grad = b.grad = None
            loss = (x @ w).mean() + 10 + b.float()
            loss.backward()
            return loss.item()

        opt.step(closure)
        kept += 1 - opt.report["dropped_curvature"].item()
    assert kept == 0


def test_floor_is_in_units_of_the_loss() -> None:
    # d2/L0 = 0.02/1
    assert step_on(Bowl(), rho=0.1, floor=0.019)[1]["dropped_curvature"] == 0
    assert step_on(Bowl(), rho=0.1, floor=0.021)[1]["dropped_curvature"] == 1
    # d2/L0 = 0.02/4
    assert step_on(Bowl(2.0), rho=0.1, floor=0.0049)[1]["dropped_curvature"] == 0
    assert step_on(Bowl(2.0), rho=0.1, floor=0.0051)[1]["dropped_curvature"] == 1


@pytest.mark.parametrize("form", ["log", "linear"])
def test_regularizer_is_bounded_by_trust(form: Any) -> None:
    bowl = Bowl(1.0, quartic=3.0)
    hyper = {"rho": 0.1, "alpha": 50.0, "beta": 1.0, "form": form}
    g_plus = 2.0 * 1.1 + 3.0 * 1.1**3
    bounded, report = step_on(copy.deepcopy(bowl), trust=0.5, **hyper)
    assert bounded == pytest.approx(1.5 * g_plus)
    literal, literal_report = step_on(copy.deepcopy(bowl), trust=None, **hyper)
    assert literal > 1.5 * bounded
    assert report["trust_scale"].item() == pytest.approx(0.5 * g_plus / (literal - g_plus))
    assert report["regularizer"].item() == pytest.approx((literal - g_plus) / g_plus)
    assert "trust_scale" not in literal_report


def test_a_regularizer_within_trust_is_left_alone() -> None:
    hyper = {"rho": 0.1, "alpha": 1e-4, "beta": 1e-5}
    bounded, report = step_on(Bowl(quartic=3.0), trust=0.5, **hyper)
    literal, _ = step_on(Bowl(quartic=3.0), trust=None, **hyper)
    assert bounded == literal
    assert report["trust_scale"] == 1


def test_warmup_raises_rho_step_by_step_and_is_in_the_state() -> None:
    model = problems.conv_net()
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.0), rho=0.4, warmup=4, model=model)
    (x, y), *_ = problems.batches(1)
    rises = []
    for _ in range(6):
        torch.manual_seed(0)
        opt.step(problems.closure_of(model, opt, x, y))
        rises.append(opt.report["sharpness"].item())
        state = opt.state_dict()
        opt = crsam.CRSAM(SGD(model.parameters(), lr=0.0), rho=0.4, warmup=4, model=model)
        opt.load_state_dict(state)
    assert rises[0] < rises[1] < rises[2] < rises[3]
    assert rises[3] == pytest.approx(rises[4])
    assert rises[4] == pytest.approx(rises[5])


def test_the_report_has_the_radius_that_the_step_used() -> None:
    bowl = Bowl(1.0)
    opt = crsam.CRSAM(SGD(bowl.parameters(), lr=0.0), rho=0.4, warmup=4)
    seen = []
    for _ in range(6):
        places: list[float] = []

        def closure(places: list[float] = places) -> Tensor:
            opt.zero_grad()
            places.append(bowl.w.item())
            loss = bowl.loss()
            loss.backward()
            return loss

        opt.step(closure)
        seen.append(opt.report["rho"].item())
        assert seen[-1] == pytest.approx(abs(places[1] - places[0]))
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert opt.param_groups[0]["rho"] == 0.4


def test_the_reported_radius_follows_the_learning_rate_and_is_the_first_groups() -> None:
    model = problems.conv_net()
    first, *others = model.parameters()
    groups = [{"params": [first], "rho": 0.5}, {"params": others, "rho": 0.1}]
    opt = crsam.GSAM(SGD(groups, lr=0.2), rho_min=0.1, model=model)
    for x, y in problems.batches(2):
        opt.step(problems.closure_of(model, opt, x, y))
        rho = 0.1 + 0.4 * opt.param_groups[0]["lr"] / 0.2
        assert opt.report["rho"].item() == pytest.approx(rho)
        opt.param_groups[0]["lr"] = 0.05


def test_a_step_without_a_perturbed_pass_reports_no_radius() -> None:
    model = problems.conv_net()
    opt = crsam.LookSAM(SGD(model.parameters(), lr=0.1), k=2, model=model)
    seen = []
    for x, y in problems.batches(4):
        opt.step(problems.closure_of(model, opt, x, y))
        seen.append("rho" in opt.report)
    assert seen == [True, False, True, False]


def test_zero_gradient_moves_nothing_and_is_finite() -> None:
    surrogate, report = step_on(Bowl(0.0), rho=0.1)
    assert surrogate == 0
    assert report["grad_norm"] == 0
    assert all(value.isfinite() for value in report.values())


@pytest.mark.parametrize(
    ("hyper", "warns"),
    [
        ({"form": "linear", "alpha": 0.1, "beta": 0.1}, True),
        ({"form": "log", "alpha": 0.1, "beta": 0.1}, False),
        ({"form": "linear", "alpha": 0.1, "beta": 0.1, "direction": "random"}, False),
        ({"form": "log", "alpha": 0.0, "beta": 0.0}, True),
        ({"form": "linear", "alpha": 0.5, "beta": 0.1}, False),
    ],
)
def test_warns_where_the_third_pass_is_paid_for_nothing(hyper: dict[str, Any], warns: bool) -> None:
    base = SGD(Bowl().parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        crsam.CRSAM(base, **hyper)
    assert bool(caught) == warns
    for warning in caught:
        assert "paid for nothing" in str(warning.message)
        assert warning.filename == __file__


def test_random_direction_is_fresh_each_step_and_repeats_with_the_seed() -> None:
    def curvatures(seed: int) -> list[float]:
        model = problems.conv_net()
        opt = crsam.CRSAM(
            SGD(model.parameters(), lr=0.0), direction="random", warmup=0, model=model, seed=seed
        )
        (x, y), *_ = problems.batches(1)
        seen = []
        for _ in range(3):
            torch.manual_seed(0)
            opt.step(problems.closure_of(model, opt, x, y))
            seen.append(opt.report["curvature"].item())
        return seen

    assert len(set(curvatures(0))) == 3
    assert curvatures(0) == curvatures(0) != curvatures(1)


@pytest.mark.parametrize("form", ["log", "linear"])
def test_between_looks_at_the_curvature_the_last_regularizer_is_used_again(form: Any) -> None:
    rho, quartic, lr = 0.1, 3.0, 1e-2
    bowl = Bowl(1.0, quartic=quartic)
    opt = crsam.CRSAM(SGD(bowl.parameters(), lr=lr), rho=rho, form=form, every=3, warmup=0)
    passes, followed, places = [0], [], []

    def closure() -> Tensor:
        passes[-1] += 1
        opt.zero_grad()
        loss = bowl.loss()
        loss.backward()
        return loss

    for _ in range(4):
        places.append(bowl.w.item())
        opt.step(closure)
        followed.append(bowl.w.grad.item())
        passes.append(0)
    assert passes == [3, 2, 2, 3, 0]
    full = [step_on(Bowl(w, quartic=quartic), rho=rho, form=form)[0] for w in places]
    g_plus = [2.0 * (w + rho) + quartic * (w + rho) ** 3 for w in places]
    assert followed[0] == pytest.approx(full[0], rel=1e-12)
    share = (full[0] - g_plus[0]) / abs(g_plus[0])
    for i in (1, 2):
        assert followed[i] == pytest.approx(g_plus[i] + share * abs(g_plus[i]), rel=1e-12)
    assert followed[3] == pytest.approx(full[3], rel=1e-12)


def test_a_look_at_every_step_keeps_nothing() -> None:
    bowl = Bowl()
    opt = crsam.CRSAM(SGD(bowl.parameters(), lr=0.1), warmup=0)
    assert opt.objective.tensor_state == ()
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        crsam.CRSAM(SGD(bowl.parameters(), lr=0.1), every=0)


@pytest.mark.parametrize("trust", [0.0, 0.1])
@pytest.mark.parametrize("form", ["log", "linear"])
def test_where_all_gradients_are_zero_nothing_moves(form: Any, trust: float) -> None:
    w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = crsam.CRSAM(SGD([w], lr=0.1), form=form, trust=trust, beta=0.0, warmup=0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = (w * 0.0).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert torch.equal(w.detach(), torch.ones(3, dtype=torch.float64))


def test_the_bound_holds_where_the_worst_case_is_flat() -> None:
    """The gradient is 0 at ``w + e`` and not at ``w``, so the regulariser must be 0 too."""
    w = torch.nn.Parameter(torch.tensor([-0.05], dtype=torch.float64))
    opt = crsam.CRSAM(SGD([w], lr=0.1), rho=0.1, form="linear", alpha=0.5, beta=0.1, warmup=0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = w.clamp(max=0).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert opt.report["grad_norm"] == 1
    assert w.item() == -0.05
