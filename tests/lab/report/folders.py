"""Run folders as a training run leaves them, written at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from crsam.lab.experiment.toml import load_recipe, to_toml

BEND = {"sgd": 0.3, "sam": 0.5, "crsam": 0.8}
"""By which the losses of a method are higher."""
STEEPNESS = {"sgd": 3.0, "sam": 1.0}
"""Of the bowl that `make_landscape` draws; others have 0.7."""


def make_run(
    folder: Path,
    method: str = "sam",
    seed: int = 0,
    *overrides: str,
    epochs: int = 6,
    lines: int = 2,
) -> Path:
    """A run that has ended: losses fall, a method's own bend above others'; a result."""
    folder.mkdir(parents=True)
    wanted = [f"method={method}", f"seed={seed}", f"train.epochs={epochs}", *overrides]
    (folder / "recipe.toml").write_text(to_toml(load_recipe("demo", wanted)))
    bend = BEND.get(method, 1.1)
    metrics: list[dict[str, Any]] = []
    for k in range(1, epochs * lines + 1):
        epoch = k / lines
        loss = 2 * math.exp(-epoch / epochs) + 0.02 * seed + bend
        line = {
            "epoch": epoch,
            "step": k * 50,
            "lr": 0.1 / epoch,
            "loss": loss,
            "accuracy": 90 - loss,
        }
        if method != "sgd":
            line |= {"grad_norm": 1 / epoch, "sharpness": 0.1 * loss}
        metrics.append({"kind": "train", **line})
        if k % lines == 0:
            metrics.append(
                {"kind": "validation", "epoch": int(epoch), "loss": loss, "accuracy": 80.0}
            )
    for epoch in (epochs // 2, epochs):
        measured = {"hessian_trace": 60 - 10 * bend + seed, "hessian_trace_stderr": 1.5}
        metrics.append({"kind": "measure", "epoch": epoch, **measured})
    write_metrics(folder, metrics)
    result = {
        "method": method, "seed": seed, "test_accuracy": 90 + 10 * bend + seed, "test_loss": 0.5,
        "train_loss": 0.3, "gradient_norm": 0.06, "sharpness": 0.004, "steps": 100,
        "seconds": 3.0, "images_per_second": 1000.0, "diverged_at": None,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    environment = {
        "command": f"python3 /venv/bin/crsam train demo method={method}", "date": "2026-01-02",
        "commit": "0123456789ab", "hardware": "a test", "python": "3.11.7",
        "versions": {"torch": "2.13.0", "crsam": "0.1.0"}, "processes": 1,
    }  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def make_comparison(folder: Path, seeds: int = 2, **options: Any) -> Path:
    for method in ("sgd", "sam", "crsam"):
        for seed in range(seeds):
            make_run(folder / method / f"seed{seed}", method, seed, **options)
    return folder


def make_landscape(run: Path, method: str, side: int = 21, **about: Any) -> None:
    x = np.linspace(-1, 1, side)
    loss = 0.5 + STEEPNESS.get(method, 0.7) * (x[None] ** 2 + x[:, None] ** 2)
    told = {"kind": "filter", "seed": 0, "split": "train", "samples": 100, "complete": True} | about
    np.savez(run / "landscape.npz", x=x, y=x, loss=loss, about=np.array(json.dumps(told)))


def write_metrics(run: Path, lines: list[dict[str, Any]]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def add_line(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text)
