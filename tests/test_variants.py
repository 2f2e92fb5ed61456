"""The benchmark of variants takes the library's steps, of many seeds at once."""

from __future__ import annotations

import json
import math
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

ROOT = Path(__file__).parents[1]
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
    opt = crsam.SharpnessAware(base, ascent, objective, warmup=200)
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
        ("linear, α = 0.5", Curvature(0.5, 0.1, "linear")),
        ("log, α = 0.1", Curvature()),
        ("log, α = 0.01", Curvature(0.01, 0.001)),
        ("log, trust 0.2", Curvature(trust=0.2)),
        ("ASAM", WorstCase()),
        ("ASAM, log", Curvature()),
    ],
)
def test_steps_are_those_of_the_library(variants: Any, name: str, objective: Any) -> None:
    problem = variants.digits_problem(SEEDS, 2)
    problem = problem._replace(x=problem.x.double())
    variant = variants.VARIANTS[name]
    found = variants.trained(problem, variant, RHO)
    for seed in range(SEEDS):
        theirs = by_the_library(variants, problem, seed, objective, variant.adaptive)
        for mine, p in zip(found, theirs, strict=True):
            expected = p.T if p.ndim > 1 else p
            torch.testing.assert_close(mine[seed].squeeze(), expected, rtol=1e-8, atol=1e-10)


def test_no_two_variants_are_the_same(variants: Any) -> None:
    problem = variants.digits_problem(1, 3)
    ends = [variants.trained(problem, v, RHO)[0] for v in variants.VARIANTS.values()]
    for k, one in enumerate(ends):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in ends[:k])


def test_rho_is_chosen_on_other_seeds_than_it_is_judged_on(variants: Any) -> None:
    runs = {"0.1": [90.0, 80.0, 91.0, 81.0], "0.2": [70.0, 85.0, 71.0, 86.0]}
    assert variants.at_own_rho(runs) == [70.0, 80.0, 71.0, 81.0]


def test_the_script_writes_what_its_table_shows(
    variants: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    names = ("SAM", "log, α = 0.1", "ASAM")
    monkeypatch.setattr(variants, "VARIANTS", {n: variants.VARIANTS[n] for n in names})
    file = tmp_path / "v.json"
    words = ["--seeds", "4", "--epochs", "2", "--rhos", "0.1,0.3", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", ["variants", *words])
    variants.main()
    shown = capsys.readouterr().out
    result = json.loads(file.read_text())
    assert set(result["accuracies"]) == set(names)
    assert all(len(runs["0.3"]) == 4 for runs in result["accuracies"].values())
    assert variants.table(result) in shown
    monkeypatch.setattr(variants, "accuracies", None)  # what is there is not run again
    variants.main()
    assert json.loads(file.read_text())["accuracies"] == result["accuracies"]
    monkeypatch.setattr(sys, "argv", ["variants", *words[2:]])
    with pytest.raises(SystemExit, match="holds other runs"):
        variants.main()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["variants", "--table", str(file)])
    variants.main()
    assert capsys.readouterr().out.strip() == variants.table(result)
