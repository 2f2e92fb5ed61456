"""The benchmark of variants takes the library's steps, of many seeds at once."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import crsam
from crsam.optim import Adaptive, Curvature, WorstCase

ROOT = Path(__file__).parents[2]
SEEDS, RHO = 2, 0.3


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    threads = torch.get_num_threads()
    yield import_module("variants")
    torch.set_num_threads(threads)


def by_the_library(module: Any, problem: Any, seed: int, objective: Any, adaptive: bool) -> Any:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                          nn.Linear(128, 10)).double()  # fmt: skip
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), module.first_weights(problem, SEEDS)):
            mine.copy_(theirs[seed].double().T if mine.ndim > 1 else theirs[seed, 0].double())
    base = torch.optim.SGD(model.parameters(), problem.lr, 0.9, weight_decay=5e-4)
    ascent = Adaptive(RHO) if adaptive else crsam.optim.Gradient(RHO)
    opt = crsam.SharpnessAware(base, ascent, objective, warmup=module.WARMUP)
    steps = problem.y.shape[1] // problem.batch
    for epoch in range(problem.epochs):
        draws = torch.Generator().manual_seed(1000 * seed + epoch)
        order = torch.randperm(problem.y.shape[1], generator=draws)
        for k in range(steps):
            some = order[k * problem.batch : (k + 1) * problem.batch]
            share = (epoch * steps + k) / (steps * problem.epochs)
            opt.param_groups[0]["lr"] = problem.lr * (1 + math.cos(math.pi * share)) / 2

            x, y = problem.x[seed, some], problem.y[seed, some]

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            opt.step(closure)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("SAM", WorstCase()),
        ("linear, α = 0.5", Curvature(0.5, 0.1, "linear", trust=0.5)),
        ("log, α = 0.1", Curvature(trust=0.5)),
        ("log, α = 0.01", Curvature(0.01, 0.001, trust=0.5)),
        ("log, trust 0.2", Curvature(trust=0.2)),
        ("ASAM", WorstCase()),
        ("ASAM, log", Curvature(trust=0.5)),
    ],
)
def test_steps_are_those_of_the_library(
    variants: Any, name: str, objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "WARMUP", 20)
    problem = variants.digits_problem(SEEDS, 2)
    problem = problem._replace(x=problem.x.double())
    variant = variants.VARIANTS[name]
    found = variants.trained(problem, variant, RHO)
    for seed in range(SEEDS):
        theirs = by_the_library(variants, problem, seed, objective, variant.adaptive)
        for mine, p in zip(found, theirs, strict=True):
            expected = p.T if p.ndim > 1 else p
            torch.testing.assert_close(mine[seed].squeeze(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "linear", "alpha": 0.5, "beta": 0.1},
        {"soft": 0.01},
        {"mean": 0.9},
        {"relative": True},
        {"follows": True},
        {"random": True},
        {"form": "linear", "random": True},
    ],
)
def test_regularizers_are_gradients_of_what_they_say(variants: Any, options: Any) -> None:
    """Of α f(d_2) + β f(d_1) by autograd, e held fixed; twice, for what is remembered."""
    variant = variants.Variant(trust=math.inf, **options)
    problem = variants.digits_problem(SEEDS, 1)
    params = [p.double() for p in variants.first_weights(problem, SEEDS)]
    regularizer, rate = variants.Regularizer(variant), 0.7
    draws, seen = torch.Generator().manual_seed(1), []
    for k in range(2):
        batch = (problem.x[:, 64 * k : 64 * k + 64].double(), problem.y[:, 64 * k : 64 * k + 64])
        l_0, g_0 = variants.look(params, *batch)
        e = variants.offset(variant, params, g_0, 0.1)
        plus = variants.look([p + d for p, d in zip(params, e)], *batch)
        found = regularizer(params, e, batch, l_0, g_0, plus, rate)
        if variant.random:
            e = [torch.randn(p.shape, generator=draws, dtype=p.dtype) for p in params]
            e = [d * (0.1 / variants.norm(e)) for d in e]
        leaves = [p.clone().requires_grad_() for p in params]

        def loss(sign: int, leaves: Any = leaves, e: Any = e, batch: Any = batch) -> Tensor:
            z = variants.logits([p + sign * d for p, d in zip(leaves, e)], batch[0])
            return F.cross_entropy(z.transpose(1, 2), batch[1], reduction="none").mean(1)

        up, center, down = loss(1), loss(0), loss(-1)
        d_1, d_2 = up - down, up + down - 2 * center
        if variant.random:
            d_1 = d_1.abs()
        seen.append((d_1.detach(), d_2.detach()))
        total = torch.zeros(())
        for weight, d, before in zip((variant.beta, variant.alpha), (d_1, d_2), seen[0]):
            if variant.form == "linear":
                term = d
            elif variant.mean:
                mean = d.detach() if k == 0 else (0.09 * before + 0.1 * d.detach()) / 0.19
                term = torch.where(mean > 0, d / mean, 0.0)
            else:
                positive = d.detach() + variant.soft > 0
                term = torch.where(positive, (d + variant.soft).clamp_min(1e-30).log(), 0.0)
                term = term * center.detach() if variant.relative else term
            total = total + weight * (rate if variant.follows else 1.0) * term.sum()
        for mine, theirs in zip(found, torch.autograd.grad(total, leaves), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("by_layer", [True, False])
def test_the_bound_is_of_the_whole_or_of_every_tensor(variants: Any, by_layer: bool) -> None:
    problem = variants.digits_problem(SEEDS, 1)
    params = variants.first_weights(problem, SEEDS)
    batch = (problem.x[:, :64], problem.y[:, :64])
    l_0, g_0 = variants.look(params, *batch)
    variant = variants.Variant(trust=1e-3, by_layer=by_layer)
    e = variants.offset(variant, params, g_0, 0.1)
    plus = variants.look([p + d for p, d in zip(params, e)], *batch)
    found = variants.Regularizer(variant)(params, e, batch, l_0, g_0, plus, 1.0)
    pairs = [([a], [b]) for a, b in zip(found, plus[1])] if by_layer else [(found, plus[1])]
    for some, beside in pairs:
        ratio = variants.norm(some) / variants.norm(beside)
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1e-3))


def test_an_even_offset_has_the_length_of_others_and_the_same_share_in_every_tensor(
    variants: Any,
) -> None:
    problem = variants.digits_problem(SEEDS, 1)
    params = variants.first_weights(problem, SEEDS)
    _, grads = variants.look(params, problem.x[:, :64], problem.y[:, :64])
    e = variants.offset(variants.Variant(even=True), params, grads, 0.1)
    torch.testing.assert_close(variants.norm(e), torch.full((SEEDS, 1, 1), 0.1))
    for part, grad in zip(e, grads):
        torch.testing.assert_close(variants.norm([part]), variants.norm(e[:1]))
        torch.testing.assert_close(part / variants.norm([part]), grad / variants.norm([grad]))


def test_no_two_variants_are_the_same(variants: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "WARMUP", 20)
    problem = variants.digits_problem(1, 3)
    ends = [variants.trained(problem, v, 0.8)[0] for v in variants.VARIANTS.values()]
    for k, one in enumerate(ends):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in ends[:k])


def test_rho_is_chosen_on_other_seeds_than_it_is_judged_on(variants: Any) -> None:
    runs = {"0.1": [90.0, 80.0, 91.0, 81.0], "0.2": [70.0, 85.0, 71.0, 86.0]}
    assert variants.at_own_rho(runs) == [70.0, 80.0, 71.0, 81.0]


def test_the_table_of_the_docs_is_that_of_the_results(variants: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/results_more.md").read_text()
    columns = []
    for problem in ("digits", "cifar10"):
        result = Path(__file__).parents[2] / f"results/variants_{problem}.json"
        accuracies = json.loads(result.read_text())["accuracies"]
        assert set(accuracies) == set(variants.VARIANTS)
        sam, cells = variants.at_own_rho(accuracies["SAM"]), {}
        for name, runs in accuracies.items():
            own = variants.at_own_rho(runs)
            gain = variants.spread([a - b for a, b in zip(own, sam)])
            gain = gain.replace("-", "−") if gain.startswith("-") else f"+{gain}"
            at_one = statistics.mean(runs["0.1"])
            beside = "" if name == "SAM" else gain
            cells[name] = f"{at_one:.2f} | {variants.spread(own)} | {beside}"
        columns.append(cells)
    for name in variants.VARIANTS:
        assert f"| {name} | {columns[0][name]} | {columns[1][name]} |" in page


def test_the_script_writes_what_its_table_shows(
    variants: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    names = ("SAM", "log, α = 0.1", "ASAM")
    every = variants.VARIANTS
    monkeypatch.setattr(variants, "VARIANTS", {n: every[n] for n in names})
    file = tmp_path / "v.json"
    words = ["--seeds", "4", "--epochs", "2", "--rhos", "0.1,0.3", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", ["variants", *words])
    variants.main()
    shown = capsys.readouterr().out
    result = json.loads(file.read_text())
    assert set(result["accuracies"]) == set(names)
    assert all(len(runs["0.3"]) == 4 for runs in result["accuracies"].values())
    assert variants.table(result) in shown
    ran: list[Any] = []  # what is there is not run again, and not lost
    monkeypatch.setattr(variants, "accuracies", lambda p, v, rho: ran.append(v) or [1.0] * 4)
    more = ("SAM", "log, α = 0.03", "log, α = 0.1", "ASAM")
    monkeypatch.setattr(variants, "VARIANTS", {n: every[n] for n in more})
    variants.main()
    assert ran == [every["log, α = 0.03"]] * 2
    later = json.loads(file.read_text())["accuracies"]
    assert {name: later[name] for name in names} == result["accuracies"]
    monkeypatch.setattr(variants, "VARIANTS", {n: every[n] for n in names})
    monkeypatch.setattr(sys, "argv", ["variants", *words[2:]])
    with pytest.raises(SystemExit, match="holds other runs"):
        variants.main()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["variants", "--table", str(file)])
    variants.main()
    assert capsys.readouterr().out.strip() == variants.table(result)
