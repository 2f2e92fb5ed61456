"""Steps are timed as they are taken; the naive ones do the same sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from typer.testing import CliRunner

import crsam
from crsam.errors import UserError
from crsam.lab.cli import app
from crsam.lab.data.batches import Batch
from crsam.lab.experiment import naive
from crsam.lab.experiment.bench import Cost, bench
from crsam.lab.experiment.naive import NaiveStep
from crsam.lab.train.step import EagerStep

SMALL = ["model=digits_mlp", "train.batch_size=32"]


@pytest.fixture(scope="module")
def costs() -> dict[str, Cost]:
    methods = ["sgd", "sam", "crsam", 'crsam:form="linear"', "looksam"]
    return {cost.name: cost for cost in bench("digits", SMALL, methods, rounds=2)}


def test_work_of_a_step_is_counted_in_passes(costs: dict[str, Cost]) -> None:
    def work(name: str) -> float:
        return costs[name].teraflops * costs[name].milliseconds

    passes = {name: work(name) / work("sgd") for name in costs}
    assert passes == {
        "sgd": 1,
        "sam": pytest.approx(2),
        "crsam": pytest.approx(3),
        'crsam:form="linear"': pytest.approx(3),
        "looksam": pytest.approx(1.2),  # one step in five pays twice
        "sam, naive": pytest.approx(2),
        "crsam, naive": pytest.approx(3),
    }


def test_figures_belong_together(costs: dict[str, Cost]) -> None:
    for cost in costs.values():
        low, high = cost.quartiles
        assert 0 < low <= cost.milliseconds <= high
        assert cost.images_per_second * cost.epoch_seconds == pytest.approx(50_000, rel=0.01)
        assert cost.teraflops > 0
        assert cost.share > 0
    assert costs["crsam"].peak_mib > costs["sgd"].peak_mib > 0


def test_command_prints_a_row_for_each_method_and_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    words = ["bench", "digits", *SMALL, "--methods", "sgd,sam", "--rounds", "1", "--no-naive"]
    ended = CliRunner().invoke(app, [*words, "--out", str(file), "--device", "cpu"])
    assert ended.exit_code == 0, ended.output
    rows = [line.split()[0] for line in ended.stdout.splitlines() if line.strip()]
    assert rows[rows.index("method") + 1 :][:2] == ["sgd", "sam"]  # a title may take two lines
    written = json.loads(file.read_text())
    assert [cost["name"] for cost in written["costs"]] == ["sgd", "sam"]
    assert written["recipe"]["train"]["batch_size"] == 32
    assert written["versions"]["torch"] == str(torch.__version__)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["sgd", "sammy"], "did you mean 'sam'"),
        (["sam:rhoo=1"], "rhoo"),
        (["sam", "sam"], "named twice"),
    ],
)
def test_bad_names_are_told(methods: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        bench("digits", SMALL, methods)


@pytest.mark.parametrize("method", ["sam", "crsam"])
def test_naive_steps_do_the_same_sums_as_ours(method: str) -> None:
    options: dict[str, Any] = {"rho": naive.RHO}
    if method == "crsam":
        options |= {"alpha": naive.ALPHA, "beta": naive.BETA, "trust": None, "warmup": 0}
    weights = []
    for ours in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        base = SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = crsam.make(method, base, **options)
        step: Any = EagerStep(model, wrapped) if ours else NaiveStep(method, model, base)
        for _ in range(10):
            step(Batch(torch.randn(16, 6, dtype=torch.float64), torch.randint(3, (16,))))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-9)


def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_timed(
    tmp_path: Path,
) -> None:
    words = ["bench", "digits", "--out", str(tmp_path / "nowhere/cost.json")]
    ended = CliRunner().invoke(app, words)
    assert isinstance(ended.exception, UserError)
    assert "cannot write to" in str(ended.exception)
