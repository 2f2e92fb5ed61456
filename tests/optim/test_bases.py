"""Any optimizer of ``torch.optim`` as the base."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import crsam

OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"lr": 0.1}, "LBFGS": {"max_iter": 3}}
BASES = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
}


class Words(nn.Module):
    """An embedding and a matrix, for bases that want sparse gradients or matrices too."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 6, sparse=sparse)
        self.out = nn.Linear(6, 3, bias=False).requires_grad_(not sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embedding(x).mean(1))


def data(num: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randint(9, (16, 4), generator=g), torch.randint(3, (16,), generator=g))
        for _ in range(num)
    ]


def train(name: str, method: str | None, **hyper: Any) -> tuple[nn.Module, list[float]]:
    model = Words(sparse=name == "SparseAdam")
    params = [p for p in model.parameters() if p.requires_grad]
    base = BASES[name](params, **OPTIONS.get(name, {}))
    opt = base if method is None else crsam.make(method, base, **hyper)
    losses = []
    for x, y in data(8):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(torch.as_tensor(opt.step(closure)).item())
    return model, losses


@pytest.mark.parametrize("name", BASES)
def test_sam_with_no_offset_is_the_base(name: str) -> None:
    (plain, plain_losses), (ours, losses) = train(name, None), train(name, "sam", rho=0.0)
    assert losses == pytest.approx(plain_losses, rel=1e-6)
    for a, b in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", ["sam", "crsam", "looksam", "friendlysam"])
@pytest.mark.parametrize("name", BASES)
def test_methods_train_on_every_base(name: str, method: str) -> None:
    before = Words(sparse=name == "SparseAdam")
    model, losses = train(name, method, rho=0.05, **({"warmup": 0} if method == "crsam" else {}))
    assert all(torch.tensor(losses).isfinite())
    assert not torch.equal(model.embedding.weight, before.embedding.weight)  # type: ignore[arg-type,union-attr]


def test_rows_that_a_sparse_base_never_saw_stay_where_they_were() -> None:
    before = Words(sparse=True)
    model, _ = train("SparseAdam", "crsam", warmup=0)
    unused, start = model.embedding.weight[9:], before.embedding.weight[9:]  # type: ignore[union-attr,index]
    assert torch.equal(unused, start)


@pytest.mark.parametrize(
    ("name", "key", "theirs"), [("RMSprop", "alpha", 0.99), ("Adadelta", "rho", 0.9)]
)
def test_a_base_keeps_its_own_hyper_parameter_of_the_same_name(
    name: str, key: str, theirs: float
) -> None:
    base = BASES[name](nn.Linear(2, 1).parameters())
    opt = crsam.CRSAM(base, rho=0.3, alpha=0.4)
    assert opt.param_groups[0][key] == theirs
    assert opt.param_groups[0]["crsam_" + key] == {"alpha": 0.4, "rho": 0.3}[key]


def test_lbfgs_leaves_the_weights_when_the_closure_raises() -> None:
    model = nn.Linear(3, 1)
    opt = crsam.SAM(torch.optim.LBFGS(model.parameters(), max_iter=5))
    before = copy.deepcopy(model.state_dict())
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        opt.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
