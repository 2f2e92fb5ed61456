"""A study of a few seconds, and results that no one had to wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.fair.jobs import look
from crsam.lab.experiment.fair.study import Study

SMALL = """
base = "digits"
[model]
width = 8
[data]
label_noise = 0.2
[train]
epochs = 2
batch_size = 256
[study]
seeds = [0, 1]
reference = "SAM"
[study.choose]
validation = 0.2
epochs = 1
seeds = [7]
[study.choose.grid]
rho = [0.05, 0.5]
[study.contestants.SGD]
method = "sgd"
[study.contestants.SAM]
method = "sam"
[study.contestants."CR-SAM log"]
method = "crsam"
options = {form = "log"}
[study.equal_time]
give = "SAM"
of = "CR-SAM log"
factor = 1.5
"""


def small(folder: Path, *overrides: str, more: str = "", without: str = "") -> Study:
    file = folder / "small.toml"
    text = SMALL.replace(without, "")
    file.write_text(text + more)
    return load_study(file, overrides)


def pretend(
    study: Study, folder: Path, accuracy: Any, loss: Any = lambda job: 1.0, **others: Any
) -> None:
    """Writes results as if all runs that can be run now had been, ``accuracy(job)`` of each."""
    for job in look(study, folder).pending:
        kind = "validation" if job.stage == "choose" else "test"
        result = {
            "validation_accuracy": None,
            "validation_loss": None,
            "test_accuracy": None,
            "test_loss": None,
            f"{kind}_accuracy": accuracy(job),
            f"{kind}_loss": loss(job),
            "gradient_norm": 0.1,
            "sharpness": 0.2,
            "seconds": 10.0,
            "seconds_per_epoch": {"SGD": 1.0, "SAM": 2.0, "CR-SAM log": 3.0}[job.contestant],
            "diverged_at": None,
            **others,
        }
        place = folder / job.place
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").write_text(json.dumps(result))
