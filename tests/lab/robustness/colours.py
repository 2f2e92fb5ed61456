"""Images of one colour each, a run that can tell the colours apart, and sets to judge it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import run
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.robustness.constants import NAMES, SEVERITIES

COLOURS = {"blue": (20, 30, 220), "green": (30, 200, 40), "red": (230, 20, 30)}
SIDE = 8


def paint(file: Path, colour: tuple[int, ...], side: int = SIDE, seed: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-15, 16, (side, side, 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file)


def recipe(root: Path) -> Recipe:
    return load_recipe(
        "digits",
        [
            "data.name=folder",
            f"data.root={root}",
            "model=digits_mlp",
            "model.width=16",
            "train.epochs=6",
            "train.batch_size=12",
            "method=sgd",
        ],
    )


def trained(folder: Path) -> Path:
    """A run that is right about every colour."""
    data = folder / "data"
    for split, count in (("train", 20), ("val", 4)):
        for name, colour in COLOURS.items():
            for k in range(count):
                paint(data / split / name / f"{k}.png", colour, seed=k)
    result = run(recipe(data), folder / "run", lines=False)
    assert result["test_accuracy"] == 100
    return folder / "run"


def right_of_four(name: str, severity: int) -> int:
    """How many of a cell's four images of a class have its colour, in `corrupted`."""
    return (3 * NAMES.index(name) + severity) % 5


def corrupted(
    root: Path, right: Callable[[str, int], int] = right_of_four, kinds: bool = False
) -> Path:
    """A set in the layout of ImageNet-C, of which a perfect model is right as often as said."""
    turned = dict(zip(COLOURS, [*list(COLOURS.values())[1:], COLOURS["blue"]]))
    for name in NAMES:
        for severity in SEVERITIES:
            place = root / ("kind" if kinds else "") / name / str(severity)
            for label in COLOURS:
                for k in range(4):
                    honest = k < right(name, severity)
                    colour = COLOURS[label] if honest else turned[label]
                    paint(place / label / f"{k}.png", colour, seed=100 + k)
    return root
