"""What the page shows, as plain values for its JSON; the scripts of the page only draw it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import crsam
from crsam.lab.report.groups import (
    Group,
    differing,
    grouped,
    is_number,
    mean_of,
    paired,
    reference_of,
)
from crsam.lab.report.names import name_of
from crsam.lab.report.page.curves import curves, series
from crsam.lab.report.page.geometry import geometry
from crsam.lab.report.page.robustness import robustness
from crsam.lab.report.page.surfaces import surface
from crsam.lab.report.runs import Run

Content = dict[str, Any]

RESULTS = ("test_accuracy", "test_loss", "train_loss", "seconds", "images_per_second")
"""Columns of the summary, as result.json has them."""
TROUBLE = ("data_wait", "broken_images")
"""Columns where a run has something to report."""
ENVIRONMENT = ("hardware", "processes", "python", "torch", "crsam", "commit", "date")


def content_of(runs: Sequence[Run], *, title: str = "", most: int = 2000) -> Content:
    """All that the page shows of these runs.

    Args:
        runs: In any order.
        title: Of the page; else the methods.
        most: Points of a curve, beyond which neighbours are averaged.
    """
    groups = grouped(runs)
    order = [run for group in groups for run in group.runs]
    which = {id(run): index for index, run in enumerate(order)}
    methods = list(dict.fromkeys(group.method for group in groups if group.method))
    lines = [series(run, most) for run in order]
    return {
        "title": title or ", ".join(methods) or "Runs",
        "setting": _setting(groups),
        "made": {
            "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
            "crsam": crsam.__version__,
        },
        "groups": [
            {"label": group.label, "runs": [which[id(run)] for run in group.runs]}
            for group in groups
        ],
        "runs": [_run(run, made, groups) for run, made in zip(order, lines)],
        "differences": [{"key": k, "values": v} for k, v in differing(groups).items()],
        "summary": _summary(groups),
        "geometry": geometry(groups),
        "robustness": robustness(groups),
        "curves": curves(lines),
        "landscapes": [
            {"run": index, **surface(run.landscape, most)}
            for index, run in enumerate(order)
            if run.landscape is not None
        ],
        "environments": _environments(order),
        "commands": _commands(order),
    }


def _run(run: Run, made: dict[str, Any], groups: Sequence[Group]) -> Content:
    (group,) = (number for number, g in enumerate(groups) if any(run is one for one in g.runs))
    wanted = run.recipe.get("train", {})
    epochs = wanted.get("epochs") if isinstance(wanted, dict) else None
    reached = [line["epoch"] for line in run.metrics if is_number(line.get("epoch"))]
    result = {
        key: run.result[key] for key in (*RESULTS, *TROUBLE) if is_number(run.result.get(key))
    }
    diverged = run.result.get("diverged_at")
    return {
        "name": run.name,
        "group": group,
        "seed": run.seed,
        "state": run.state,
        "problems": list(run.problems) + made["problems"],
        "epochs": epochs if is_number(epochs) else None,
        "reached": max(reached, default=None),
        "diverged": diverged if is_number(diverged) else None,
        "written": run.written,
        "result": result,
        "recipe": run.recipe_text,
        "series": made["series"],
        "thinned": made["thinned"],
    }


def _setting(groups: Sequence[Group]) -> list[str]:
    """Data, model and epochs, where all recipes agree on them."""
    wanted = {"data.name": "{}", "model.name": "{}", "train.epochs": "{} epochs"}
    known = [group.recipe for group in groups if group.recipe]
    values = {key: {recipe.get(key) for recipe in known} for key in wanted}
    return [
        words.format(*values[key])
        for key, words in wanted.items()
        if len(values[key]) == 1 and None not in values[key]
    ]


def _summary(groups: Sequence[Group]) -> Content:
    ended = [run for group in groups for run in group.runs if run.result]
    columns = [key for key in RESULTS if any(key in run.result for run in ended)]
    columns += [key for key in TROUBLE if any(_is_some(run.result.get(key)) for run in ended)]
    rows = []
    for group in groups:
        results = [run.result for run in group.runs if run.result]
        reference = reference_of(group, groups)
        gain = None if reference is None else paired("test_accuracy", group, reference)
        rows.append(
            {
                "cells": [_plain(mean_of(each.get(key) for each in results)) for key in columns],
                "against": None if reference is None else reference.label,
                "gain": _plain(gain),
                "ended": len(results),
                "diverged": sum(run.state == "diverged" for run in group.runs),
            }
        )
    return {"columns": [{"key": key, **name_of(key)._asdict()} for key in columns], "rows": rows}


def _is_some(value: Any) -> bool:
    """Whether it is a number that shows, rounded as it will be."""
    return is_number(value) and round(value, 2) > 0


def _plain(value: Any) -> Any:
    return None if value is None else vars(value)


def _environments(runs: Sequence[Run]) -> list[Content]:
    """The different ones, each with the runs that had it."""
    found: dict[tuple[str, ...], list[int]] = {}
    for index, run in enumerate(runs):
        versions = run.environment.get("versions")
        flat = {**run.environment, **(versions if isinstance(versions, dict) else {})}
        if run.environment:
            values = tuple("" if flat.get(k) is None else str(flat[k]) for k in ENVIRONMENT)
            found.setdefault(values, []).append(index)
    return [
        {"values": dict(zip(ENVIRONMENT, values)), "runs": mine} for values, mine in found.items()
    ]


def _commands(runs: Sequence[Run]) -> list[Content]:
    """The commands that made the runs, in the words of today's command line."""
    found: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        command = run.environment.get("command")
        if isinstance(command, str) and command:
            found.setdefault(_as_typed(command), []).append(index)
    return [{"command": command, "runs": mine} for command, mine in found.items()]


def _as_typed(command: str) -> str:
    """Without the interpreter and the place where it is installed.

    Example:
        >>> _as_typed("python3 /opt/venv/bin/crsam demo --seeds 2")
        'crsam demo --seeds 2'
    """
    words = command.split(" ")
    for count, word in enumerate(words[:2]):
        path = PurePath(word)
        if path.name == "crsam" or path.parts[-2:] == ("crsam", "__main__.py"):
            return " ".join(["crsam", *words[count + 1 :]])
    return command
