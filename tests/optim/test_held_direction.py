"""CR-SAM's regulariser holds v fixed: against autograd, with v held and through v."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

import crsam

RHO, ALPHA, BETA = 0.1, 0.3, 0.2


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x = torch.randn(40, 6, dtype=torch.float64)
    return model, x, torch.randint(3, (40,))


def regularizer_gradient(form: str, through_v: bool) -> Tensor:
    """The gradient of R_c by autograd; of the linear form's alpha d2 + beta d1."""
    model, x, y = problem()
    names = [name for name, _ in model.named_parameters()]
    w = [p.detach().requires_grad_() for p in model.parameters()]

    def loss(at: list[Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, dict(zip(names, at)), (x,)), y)

    g = torch.autograd.grad(loss(w), w, create_graph=True)
    norm = torch.sqrt(sum(part.square().sum() for part in g))
    v = [part / norm if through_v else (part / norm).detach() for part in g]
    plus = loss([a + RHO * b for a, b in zip(w, v)])
    minus = loss([a - RHO * b for a, b in zip(w, v)])
    d_1, d_2 = plus - minus, plus + minus - 2 * loss(w)
    assert d_1 > 0
    assert d_2 > 0
    if form == "log":
        d_1, d_2 = d_1.log(), d_2.log()
    found = torch.autograd.grad(ALPHA * d_2 + BETA * d_1, w)
    return torch.cat([part.reshape(-1) for part in found])


def ours(form: str) -> Tensor:
    """What CRSAM follows, less what SAM follows."""
    followed = []
    for options in ({"alpha": ALPHA, "beta": BETA}, None):
        model, x, y = problem()
        base = SGD(model.parameters(), lr=0.1)
        opt = (
            crsam.SAM(base, rho=RHO)
            if options is None
            else crsam.CRSAM(base, rho=RHO, form=form, trust=None, warmup=0, **options)
        )

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)
        followed.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    return followed[0] - followed[1]


@pytest.mark.parametrize(
    ("form", "difference", "cosine"), [("log", 0.706, 0.710), ("linear", 0.087, 0.998)]
)
def test_the_regularizer_is_differentiated_with_v_held_and_not_through_v(
    form: str, difference: float, cosine: float
) -> None:
    """The two numbers are in docs/paper.md."""
    found, held, full = ours(form), *(regularizer_gradient(form, v) for v in (False, True))
    torch.testing.assert_close(found, held, rtol=1e-8, atol=1e-10)
    assert ((found - full).norm() / full.norm()).item() == pytest.approx(difference, rel=0.01)
    assert F.cosine_similarity(found, full, dim=0).item() == pytest.approx(cosine, rel=0.01)
