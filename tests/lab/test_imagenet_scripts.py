"""The scripts that are run on a large GPU, on a small CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crsam.lab.data import random
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.fair.verdict import verdict
from crsam.lab.experiment.run import evaluate_run

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "model.width=12"]
Script = Callable[..., str]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """Runs one of them in this process; what it prints."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the scripts turn it on
    monkeypatch.setattr(random, "NUM_TRAIN", 64)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words, *SMALL])
        import_module(name).main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for split, each in (("train", 3), ("val", 1)):
        for name in ("n01", "n02"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(256, size=(40, 40, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.JPEG")
    return tmp_path / "photos"


@pytest.mark.parametrize(("name", "base"), [("resnet50", "SGD"), ("vit_s32", "AdamW")])
def test_a_study_of_imagenette(name: str, base: str, photos: Path, tmp_path: Path) -> None:
    sizes = ["data.image_size=32", "train.batch_size=6", "train.epochs=1", "schedule.warmup=0"]
    sizes += [f"data.root={photos}", "study.seeds=[0]", "train.precision=float32", SMALL[-1]]
    study = load_study(f"imagenette_{name}", sizes)
    progress = conduct(study, tmp_path / "runs")
    assert progress.is_complete
    rows = [row.contestant for row in verdict(progress).rows]
    assert rows == [base, "SAM", "R-SAM", "CR-SAM"]
    step, score = evaluate_run(tmp_path / "runs" / progress.jobs[-1].place)
    assert step == 1
    assert score.accuracy in (0, 50, 100)


def test_step_times_are_rows_and_go_on_where_they_were(script: Script, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    words = ["--pixels", "32", "--batches", "2", "--rounds", "1", "--out", str(file)]
    script("imagenet_steps", "--models", "resnet50", "--methods", "base,sam", *words)
    before = json.loads(file.read_text())
    assert [row["method"] for row in before["rows"]] == ["sgd", "sam"]
    out = script("imagenet_steps", "--models", "resnet50,vit_s32", "--methods", "base", *words)
    after = json.loads(file.read_text())
    assert after["rows"][:2] == before["rows"]
    assert [row["method"] for row in after["rows"]] == ["sgd", "sam", "adamw"]
    assert all(row["images_per_second"] > 0 and not row["captured"] for row in after["rows"])
    last = out.splitlines()[-3:]
    ratio = before["rows"][1]["milliseconds"] / before["rows"][0]["milliseconds"]
    assert f"| {ratio:.2f} |" in last[1]
    assert last[2].startswith("| vit_s32 | 32 | 2 | adamw | ")
    with pytest.raises(SystemExit, match=r"steps.json has rounds 1, here it is 2: give another"):
        script("imagenet_steps", *words, "--rounds", "2")


def test_what_does_not_fit_into_memory_is_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    steps = import_module("imagenet_steps")

    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(steps, "bench", full)
    row = {"model": "resnet50", "pixels": 224, "batch": 512, "method": "crsam"}
    found = steps.timed(row, [], steps.World(), 1)
    assert found == {**row, "failed": "out of memory"}
    assert "| resnet50 | 224 | 512 | crsam | out of memory |" in steps.table([found])
