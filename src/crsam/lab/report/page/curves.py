"""The lines of ``metrics.jsonl`` as curves over epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from crsam.lab.report.groups import is_number
from crsam.lab.report.names import name_of
from crsam.lab.report.runs import Run

KINDS = {
    "train": "training", "validation": "validation", "measure": "measured",
    "measure_test": "measured on test images,",
}  # fmt: skip
"""Kinds of lines that make curves, and how they are called."""
NOT_FINITE = "nan"
"""In the place of a number that is none; a value that was not written at all is null."""
NOT_CURVES = ("kind", "epoch", "step")
CONSTANT = ("_rho", "_batch_size")
"""How the names of numbers end that a figure was measured with."""
SHOWN_FIRST = ("loss", "accuracy")
"""Of what a training step reports, these are shown unasked."""


def series(run: Run, most: int) -> dict[str, Any]:
    """The curves of a run: ``{kind: {"x": epochs, "y": {metric: values}}}``, and what is amiss.

    Args:
        run: Of which.
        most: Points of a curve; beyond, neighbours are averaged.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    thinned = 1
    for kind in KINDS:
        lines = [line for line in run.metrics if line.get("kind") == kind]
        placed = sorted(
            (line for line in lines if is_number(line.get("epoch"))), key=lambda line: line["epoch"]
        )
        if len(placed) < len(lines):
            problems.append(f"metrics.jsonl: {len(lines) - len(placed)} lines have no epoch")
        if not placed:
            continue
        keys = [k for k in dict.fromkeys(k for line in placed for k in line) if _is_curve(k)]
        columns = {key: [_value(line, key) for line in placed] for key in keys}
        columns = {k: v for k, v in columns.items() if any(value is not None for value in v)}
        width = math.ceil(len(placed) / most)
        thinned = max(thinned, width)
        found[kind] = {
            "x": _averages([line["epoch"] for line in placed], width),
            "y": {key: _averages(values, width) for key, values in columns.items()},
        }
        bad = [key for key, values in columns.items() if NOT_FINITE in values]
        if bad:
            named = ", ".join(name_of(key).text for key in bad[:3]) + (", …" * (len(bad) > 3))
            problems.append(f"values that are not finite in {KINDS[kind]}: {named}")
    return {"series": found, "problems": problems, "thinned": thinned}


def curves(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All curves that any of the runs has, in the order of `KINDS`."""
    found = []
    for kind, word in KINDS.items():
        keys = dict.fromkeys(
            key for made in lines for key in made["series"].get(kind, {"y": {}})["y"]
        )
        first = [key for key in SHOWN_FIRST if key in keys]
        for key in [*first, *(key for key in keys if key not in first)]:
            if not key.endswith("_stderr"):
                name = name_of(key)
                alone = kind == "measure" and key not in SHOWN_FIRST
                found.append(
                    {
                        "kind": kind,
                        "key": key,
                        "word": word,
                        "brief": name.text,
                        "text": name.text if alone else f"{word} {name.text}",
                        "unit": name.unit,
                        "meaning": name.meaning,
                        "shown": kind != "train" or key in SHOWN_FIRST,
                    }
                )
    return found


def _is_curve(key: str) -> bool:
    return key not in NOT_CURVES and not key.endswith(CONSTANT)


def _value(line: dict[str, Any], key: str) -> float | str | None:
    if key not in line:
        return None
    value = line[key]
    if is_number(value):
        return float(f"{value:.5g}")
    # The run itself writes null for what JSON has no number for.
    return NOT_FINITE if value is None or isinstance(value, float) else None


def _averages(values: Sequence[Any], width: int) -> list[Any]:
    """Means of `width` neighbours; where one of them is no number, that is the outcome."""
    if width == 1:
        return list(values)
    parts = [values[start : start + width] for start in range(0, len(values), width)]
    return [_average(part) for part in parts]


def _average(part: Sequence[Any]) -> Any:
    if NOT_FINITE in part:
        return NOT_FINITE
    numbers = [value for value in part if value is not None]
    return float(f"{sum(numbers) / len(numbers):.5g}") if numbers else None
