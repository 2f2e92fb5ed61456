"""Short runs that the tests of this room share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.toml import load_recipe

TINY = (
    "model.width=8",
    "train.epochs=3",
    "train.batch_size=256",
    "data.label_noise=0.2",
    "log.every=2",
)
"""15 steps on digits."""


def tiny(*overrides: str) -> Recipe:
    return load_recipe("digits", [*TINY, *overrides])


def outcome(folder: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """All that must be the same in two runs: weights and optimizer, metrics, result."""
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["training"]
    result = json.loads((folder / "result.json").read_text())
    for clock in ("seconds", "seconds_per_epoch", "images_per_second", "data_wait"):
        del result[clock]
    return state, (folder / "metrics.jsonl").read_text(), result


def assert_same(one: Path, other: Path) -> None:
    a, b = outcome(one), outcome(other)
    assert_same_state(a[0], b[0])
    assert a[1:] == b[1:]


def assert_same_state(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same_state(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same_state(x, y)
    else:
        assert a == b
