"""Two processes train as one does with the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from crsam.lab.experiment.fair.jobs import look
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.measure import Setting, measure_run
from crsam.lab.experiment.run import evaluate_run, run
from lab.experiment.fair.studies import small
from lab.experiment.runs import tiny

HERE = Path(__file__).parent
METHODS = ["sgd", "sam", "crsam"]
OPTIONS = (
    "train.precision=float64",
    "augment=basic",
    "loss.mixup=0.2",
    "data.validation=0.1",
    "methods.crsam.warmup=3",
    "methods.crsam.rho=0.2",
)


def torchrun(*words: str, num: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}"]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launcher, *words], env=env, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    ended = torchrun(
        str(HERE / "programs/ranks.py"), str(folder), *METHODS, *OPTIONS, "train.accumulate=2"
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def numbers(folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = torch.load(folder / "checkpoint.pt", weights_only=True)["training"]["model"]
    return lines, weights


def test_the_model_that_is_judged_is_the_one_that_is_saved_with_batch_norm_too(
    tmp_path: Path,
) -> None:
    # More validation images than a batch of evaluation has, so that both processes judge some.
    options = ["model=digits_conv", "train.ema=0.9", "train.precision=float64"]
    ended = torchrun(
        str(HERE / "programs/ranks.py"), str(tmp_path), "sam", "data.validation=0.5", *options
    )
    assert ended.returncode == 0, ended.stderr
    lines = [m for m in RunFolder(tmp_path / "sam").metrics() if m["kind"] == "validation"]
    saved = evaluate_run(tmp_path / "sam", split="validation")[1]
    assert lines[-1]["loss"] == pytest.approx(saved.loss, rel=1e-12)


def test_two_ranks_measure_what_one_process_does_and_one_of_them_tells(two: Path) -> None:
    words = ["measure", str(two / "sam"), "--samples", "300", "--probes", "9"]
    words += ["--metrics", "hessian_trace,normalized_trace,sharpness"]
    file = two / "sam/measures-train.json"
    ended = torchrun("-m", "crsam", *words)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("written to") == 1
    theirs = json.loads(file.read_text())["metrics"]
    how = Setting(num_probes=9)
    ours = measure_run(two / "sam", list(theirs), samples=300, how=how)
    for name, figure in ours.items():
        assert theirs[name]["value"] == pytest.approx(figure.value, rel=1e-5)
    for name in ("hessian_trace", "normalized_trace"):
        assert theirs[name]["stderr"] == pytest.approx(ours[name].stderr, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_give_the_losses_and_weights_of_one_process(
    method: str, two: Path, tmp_path: Path
) -> None:
    run(tiny(f"method={method}", *OPTIONS), tmp_path, lines=False)
    (theirs, weights), (ours, our_weights) = numbers(two / method), numbers(tmp_path)
    assert len(theirs) == len(ours) > 8
    for a, b in zip(theirs, ours):
        assert a.keys() == b.keys()
        assert a == {k: v if k == "kind" else pytest.approx(v, abs=1e-9) for k, v in b.items()}
    for name, value in our_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-9)


def test_two_ranks_conduct_a_study_of_which_one_measures(tmp_path: Path) -> None:
    # More than a moment to measure, in which the other rank must not begin the next run.
    more = '[study.measure]\nmetrics = ["hessian_trace"]\nsamples = 256\nnum_probes = 200\n'
    study = small(tmp_path, "study.seeds=[0]", more=more)
    words = ["study", str(tmp_path / "small.toml"), "study.seeds=[0]", "--device", "cpu"]
    ended = torchrun("-m", "crsam", *words, "--out", str(tmp_path / "runs"))
    assert ended.returncode == 0, ended.stderr
    progress = look(study, tmp_path / "runs")
    assert progress.is_complete
    assert ended.stderr.count("accuracy") == len(progress.jobs)
