"""A study in one small file: every run with its recipe, place of origin and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crsam import _files
from crsam.errors import UserError
from crsam.lab._tables import flat
from crsam.lab.experiment.fair.jobs import Job, Progress
from crsam.lab.experiment.fair.verdict import verdict
from crsam.lab.experiment.folder import RunFolder, finite
from crsam.lab.experiment.recipe import as_tables
from crsam.lab.experiment.restore import DATA_FILE
from crsam.lab.experiment.robustness.section import read_sections

LIMIT = 200_000
"""Bytes; of a longer summary the curves have fewer points."""
KIND = "crsam study"
RESULTS = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss",
           "gradient_norm", "sharpness", "steps", "seconds", "seconds_per_epoch", "data_wait",
           "diverged_at")  # fmt: skip
CURVES = {
    "train": ("loss", "accuracy", "grad_norm", "sharpness", "curvature", "dropped_curvature",
              "regularizer", "trust_scale"),
    "validation": ("accuracy", "loss"),
}  # fmt: skip
"""What is kept of the lines of each kind."""
ROBUSTNESS = ("num_images", "num_classes", "step", "mean_accuracy", "mce", "relative_to",
              "missing", "of_those_there", "accuracy", "commit", "hardware")  # fmt: skip
"""What is kept of each set that ``crsam evaluate`` has judged a run on."""


def write_summary(progress: Progress, folder: Path, file: Path) -> None:
    """Writes all that is known, every run on a line of its own."""
    every, text = 1, as_text(summary(progress, folder))
    longest = max((job.epochs for job in progress.jobs), default=0)
    while len(text.encode()) > LIMIT and every < longest:
        every *= 2
        text = as_text(summary(progress, folder, every))
    file.parent.mkdir(parents=True, exist_ok=True)
    _files.write(file, text.encode())


def summary(progress: Progress, folder: Path, every: int = 1) -> dict[str, Any]:
    """The study, what it says, and its runs.

    Args:
        progress: Of the study.
        folder: Of its runs.
        every: Epochs between two points of a curve; the last one is always there.
    """
    study = progress.study
    recipe = as_tables(study.recipe)
    done = [job for job in progress.jobs if job.result is not None]
    chosen_last = sorted(done, key=lambda job: job.setting == progress.chosen.get(job.contestant))
    origins = {job.place: RunFolder(folder / job.place).environment() for job in done}
    options = {job.contestant: origins[job.place].get("options") for job in chosen_last}
    return {
        "kind": KIND,
        "study": study.name,
        "is_complete": progress.is_complete,
        "reference": study.reference,
        "recipe": recipe,
        "images": _fingerprint(folder, done),
        "commands": sorted({origin["command"] for origin in origins.values()}),
        "options": options,
        "chosen": {name: dict(setting) for name, setting in progress.chosen.items()},
        "verdict": verdict(progress).as_json(),
        "runs": [_run(job, folder, flat(recipe), every) for job in done],
    }


def _fingerprint(folder: Path, done: Sequence[Job]) -> str | None:
    """That of the images, which is the same for all runs; None if no run has kept one."""
    found = (_files.read_json(folder / job.place / DATA_FILE) or {} for job in done)
    return next((each["fingerprint"] for each in found if each.get("fingerprint")), None)


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each key, and for each run."""
    lines = []
    for key, value in finite(content).items():
        if key == "runs":
            each = ",\n  ".join(json.dumps(run, allow_nan=False) for run in value)
            lines.append(f' "runs": [\n  {each}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _run(job: Job, folder: Path, base: Mapping[str, Any], every: int) -> dict[str, Any]:
    assert job.result is not None and job.setting is not None  # noqa: PT018
    place = RunFolder(folder / job.place)
    origin = place.environment()
    own = flat(as_tables(job.recipe))
    return {
        "stage": job.stage,
        "contestant": job.contestant,
        "setting": dict(job.setting),
        "seed": job.recipe.seed,
        "changes": {key: value for key, value in own.items() if base.get(key) != value},
        **{key: origin.get(key) for key in ("commit", "date", "hardware")},
        "torch": origin["versions"]["torch"],
        **{key: rounded(job.result.get(key), 6) for key in RESULTS},
        **({"measures": rounded(job.measures)} if job.measures else {}),
        **_robustness(place.path),
        "epochs": curves(place.metrics(), every),
    }


def _robustness(folder: Path) -> dict[str, Any]:
    try:
        sections = read_sections(folder)
    except UserError:  # `crsam evaluate` will say so; a study has nothing to do with it
        return {}
    sets = {
        name: rounded({key: section[key] for key in ROBUSTNESS if key in section})
        for name, section in sections.items()
    }
    return {"robustness": sets} if sets else {}


def curves(lines: list[dict[str, Any]], every: int = 1) -> dict[str, list[Any]]:
    """Figures by epoch: of training the mean over its steps, else the last that there is.

    Example:
        >>> lines = [{"kind": "train", "epoch": 0.75, "step": 3, "loss": 2.0}]
        >>> curves([*lines, {"kind": "train", "epoch": 1.0, "step": 4, "loss": 1.0}])
        {'epoch': [1], 'train_loss': [1.75]}
    """
    trained = [line for line in lines if line["kind"] == "train"]
    ends = {line["epoch"] for line in trained if line["epoch"] % 1 == 0}
    shown = [e for e in sorted(ends) if e % every == 0 or e == max(ends)]
    found: dict[str, list[Any]] = {"epoch": [int(epoch) for epoch in shown]}
    for kind in ("train", "validation", "measure", "measure_test"):
        by_epoch = {line["epoch"]: line for line in lines if line["kind"] == kind}
        if kind == "train":
            by_epoch = _means(trained)
        names = CURVES.get(kind) or {k for line in by_epoch.values() for k in line}
        for name in sorted(set(names) - {"kind", "epoch"}, key=list(names).index):
            values = [by_epoch.get(epoch, {}).get(name) for epoch in shown]
            if any(value is not None for value in values):
                found[f"{kind}_{name}"] = [rounded(value) for value in values]
    return found


def _means(lines: list[dict[str, Any]]) -> dict[float, dict[str, float | None]]:
    """By epoch: a line has means over the steps since the one before it."""
    parts: dict[float, list[tuple[int, dict[str, Any]]]] = {}
    before = 0
    for line in lines:
        parts.setdefault(math.ceil(line["epoch"]), []).append((line["step"] - before, line))
        before = line["step"]
    return {
        epoch: {name: _mean([(n, line[name]) for n, line in mine if name in line])
                for name in CURVES["train"]}
        for epoch, mine in parts.items()
    }  # fmt: skip


def _mean(values: list[tuple[int, float | None]]) -> float | None:
    numbers = [(steps, value) for steps, value in values if value is not None]
    if not numbers or len(numbers) < len(values):  # one that is not finite is not left out
        return None
    return sum(steps * value for steps, value in numbers) / sum(steps for steps, _ in numbers)


def rounded(value: Any, digits: int = 4) -> Any:
    """So many digits; whole numbers stay."""
    if isinstance(value, Mapping):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
