"""A corrupted copy of a set of small images, as CIFAR-10-C has it."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crsam._files import write
from crsam.errors import UserError
from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.corrupt import check_asked
from crsam.lab.robustness.layouts import Cell, array_in
from crsam.lab.robustness.sampling import Bytes
from crsam.lab.robustness.settings import Copied, Settings, begin
from crsam.lab.robustness.workers import number_of, worked
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.progress import bar

PART = 500
"""Images that a worker is given at a time."""


def corrupt_arrays(
    images: Bytes,
    labels: npt.NDArray[np.int64],
    dest: Path,
    settings: Settings,
    *,
    names: Sequence[str] = NAMES,
    workers: int | None = None,
) -> Copied:
    """Writes ``dest/CORRUPTION.npy``, all severities one after the other, and ``labels.npy``.

    Args:
        images: Bytes of shape (N, H, W, 3).
        labels: Of shape (N,).
        dest: The folder to write to.
        settings: See `Settings`.
        names: The corruptions; those that are there already stay.
        workers: Processes; None: one for each core, or none for less than 1,000 images.

    Raises:
        UserError: If the folder holds something else.
    """
    check_asked(list(names), [])
    settings.check_frost(names)
    begin(dest, settings)
    each, total = len(images), len(images) * len(SEVERITIES)
    file = dest / "labels.npy"
    stacked = np.tile(labels, len(SEVERITIES)).astype(np.uint8)
    if file.exists() and not np.array_equal(array_in(file), stacked):
        raise UserError(f"{dest} holds a copy of other images: give another folder")
    _save(file, stacked)
    wanted = [name for name in names if not (dest / f"{name}.npy").exists()]
    with stoppable() as stop, bar("corrupting", len(wanted) * total) as advance:
        tasks = [
            (images[start : start + PART], start, (name, severity))
            for name in wanted
            for severity in SEVERITIES
            for start in range(0, each, PART)
        ]
        work = functools.partial(_corrupt_part, settings=settings)
        filled = np.empty((total, *images.shape[1:]), np.uint8)
        for (part, start, (name, severity)), found in zip(
            tasks, worked(work, tasks, number_of(workers, total * len(wanted)))
        ):
            place = (severity - 1) * each + start
            filled[place : place + len(part)] = found
            advance(len(part), note=name)
            if place + len(part) == total:
                _save(dest / f"{name}.npy", filled)
            if stop.asked:
                raise Stopped
    return Copied(len(wanted) * total, (len(names) - len(wanted)) * total)


def _corrupt_part(task: tuple[Bytes, int, Cell], settings: Settings) -> Bytes:
    images, start, (name, severity) = task
    return np.stack(
        [
            settings.corrupted(image, name, severity, str(start + number))
            for number, image in enumerate(images)
        ]
    )


def _save(file: Path, array: npt.NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write(file, buffer.getvalue())
