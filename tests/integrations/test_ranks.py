"""Two processes under each framework's data parallelism: one model, that of a single process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from integrations import tasks

for package in ("lightning", "transformers", "accelerate"):
    pytest.importorskip(package)

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [sys.executable, *launcher, str(HERE / "programs/ranks.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


@pytest.mark.parametrize("method", ["crsam", "looksam"])
@pytest.mark.parametrize("framework", ["lightning", "fabric", "transformers", "accelerate"])
def test_replicas_stay_equal_and_are_those_of_one_process(
    framework: str, method: str, ranks: Path
) -> None:
    first, second = (
        torch.load(ranks / f"{framework}-{method}-{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    plain, _ = tasks.train_plainly(
        method, accumulate=2, dtype=torch.float64, batch_norm=False, max_norm=0.1
    )
    for name, value in plain.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=0, atol=1e-9)
