"""Killed at any moment and started again, a run ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crsam.experiment.run import run
from experiment.runs import assert_same, tiny

HERE = Path(__file__).parent
MOMENTS = [
    ("step", 2),  # before there is any checkpoint
    ("step", 24),  # in the second epoch, the weights moved
    ("line", 5),
    ("checkpoint", 1),
    ("checkpoint", 2),
    ("rename", 2),
    ("renamed", 2),
    ("result", 1),
]
OPTIONS = ("method=crsam", "train.ema=0.9", "data.validation=0.1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(tiny(*OPTIONS), folder, lines=False)
    return folder


@pytest.mark.parametrize(("moment", "count"), MOMENTS)
def test_a_killed_run_ends_bit_identical(
    moment: str, count: int, undisturbed: Path, tmp_path: Path
) -> None:
    command = [sys.executable, HERE / "programs/killed.py", moment, str(count), tmp_path, *OPTIONS]
    paths = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    ended = subprocess.run(command, env=paths, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "result.json").exists()
    run(tiny(*OPTIONS), tmp_path, lines=False)
    assert_same(undisturbed, tmp_path)
    assert not list(tmp_path.glob("*.tmp"))
