"""Killed at any moment and started again, a run ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.run import run
from lab.experiment.runs import assert_same, tiny

HERE = Path(__file__).parent
MOMENTS = [
    ("step", 2),  # before there is any checkpoint
    ("step", 24),  # in the second epoch, the weights moved
    ("line", 5),
    ("checkpoint", 1),
    ("checkpoint", 2),
    ("rename", 2),
    ("renamed", 2),
    ("linked", 1),
    ("linked", 2),
    ("kept", 1),
    ("kept", 2),
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
    kill_and_go_on(moment, count, undisturbed, tmp_path)


@pytest.mark.parametrize(("moment", "count"), [("linked", 2), ("kept", 1), ("kept", 2)])
def test_so_does_one_on_a_file_system_without_hard_links(
    moment: str, count: int, undisturbed: Path, tmp_path: Path
) -> None:
    kill_and_go_on(moment, count, undisturbed, tmp_path, NO_LINKS="1")


def kill_and_go_on(
    moment: str, count: int, undisturbed: Path, tmp_path: Path, **environment: str
) -> None:
    command = [sys.executable, HERE / "programs/killed.py", moment, str(count), tmp_path, *OPTIONS]
    sources = os.environ.get("PYTHONPATH", "")
    paths = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{sources}", **environment}
    ended = subprocess.run(command, env=paths, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "result.json").exists()
    if moment not in ("step", "line") and (moment, count) != ("checkpoint", 1):
        assert RunFolder(tmp_path).has_checkpoint
    run(tiny(*OPTIONS), tmp_path, lines=False)
    assert_same(undisturbed, tmp_path)
    assert not list(tmp_path.glob("*.tmp"))
