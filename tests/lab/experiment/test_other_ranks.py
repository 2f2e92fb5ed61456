"""A run goes on with another number of processes, as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from crsam.lab.experiment.run import run
from lab.experiment.runs import tiny
from lab.experiment.test_ranks import HERE, numbers, torchrun

OPTIONS = (
    "method=crsam",
    "train.batch_size=240",  # for two and for three; 6 steps an epoch, the last one filled up
    "train.precision=float64",
    "augment=basic",
    "methods.crsam.warmup=3",
    "methods.crsam.rho=0.2",
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After 7 of 15 steps on two processes, in the middle of the second epoch."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    ended = torchrun(str(HERE / "programs/stopped.py"), str(folder), "7", *OPTIONS)
    assert ended.returncode == 0, ended.stderr
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert state["training"]["step"] == 7
    return folder


@pytest.mark.parametrize("num", [1, 3])
def test_stopped_on_two_goes_on_on(num: int, stopped: Path, tmp_path: Path) -> None:
    place = tmp_path / "crsam"
    shutil.copytree(stopped, place)
    if num == 1:
        run(tiny(*OPTIONS), place, lines=False)
    else:
        ended = torchrun(
            str(HERE / "programs/ranks.py"), str(tmp_path), "crsam", *OPTIONS[1:], num=num
        )
        assert ended.returncode == 0, ended.stderr
    run(tiny(*OPTIONS), tmp_path / "whole", lines=False)
    (lines, weights), (ours, our_weights) = numbers(place), numbers(tmp_path / "whole")
    # The batches of an epoch are a function of seed and number: equal losses, equal images.
    assert len(lines) == len(ours)
    for a, b in zip(lines, ours):
        assert a == {k: v if k == "kind" else pytest.approx(v, abs=1e-9) for k, v in b.items()}
    for name, value in our_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-9)
