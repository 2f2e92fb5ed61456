"""Figures of runs and studies for print: the paper's, and what else one wants to see.

Needs matplotlib, the extra ``report``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from crsam.errors import UserError, unknown
from crsam.report.figures import landscapes, spectra, studies, style, training
from crsam.report.figures.landscapes import broken
from crsam.report.groups import Group, differing, grouped
from crsam.report.runs import Run, read_runs
from crsam.report.studies import is_study, read_studies

FORMATS = ("pdf", "svg", "png")

Maker = Callable[[Sequence[Group]], Iterator[tuple[str, Any]]]
MAKERS: tuple[Maker, ...] = (
    training.ratio,
    training.geometry,
    landscapes.surfaces,
    landscapes.lines,
    training.convergence,
    training.steps,
    spectra.densities,
)
"""Each gives the names and drawings of the figures for which these runs have the numbers."""


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and what was not."""

    files: list[Path]
    notes: list[str]
    """A line for each thing that is missing, broken, or to be known when looking."""


def write_figures(
    paths: Sequence[str | Path],
    out: str | Path,
    formats: Sequence[str] = ("pdf",),
    *,
    dpi: int = 300,
) -> Drawn:
    """Draws every figure for which the runs and studies have the numbers.

    Args:
        paths: Folders of runs, of comparisons, or of several such; of studies their folders or
            their summaries, those that ask the same of other seeds in one panel.
        out: The folder to write to; it is made.
        formats: Any of ``pdf``, ``svg`` and ``png``.
        dpi: Dots to an inch, of PNG files and of the surfaces in the others.

    Returns:
        Which files were written, and what could not be drawn, and why.

    Raises:
        UserError: If there is no run, nothing to draw, no such format, or no matplotlib.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    style.check_matplotlib()
    asked = read_studies([path for path in paths if is_study(Path(path))])
    folders = [path for path in paths if not Path(path).is_file()]  # or not there: it is told
    runs = read_runs(folders) if folders else []
    groups = grouped(run for run in runs if run.state != "broken")
    place = Path(out)
    files: list[Path] = []
    with style.printed():
        found = [make(groups) for make in MAKERS] if runs else []
        for name, figure in chain(*found, studies.leads(asked), studies.choice(asked)):
            files += style.save(figure, place, name, formats, dpi)
    notes = [*_problems(runs), *_differences(groups), *(_missing(files) if runs else ())]
    notes += [note for study in asked for note in study.notes]
    if not files:
        if not runs:
            raise UserError("there is nothing to draw: no study has tested a contestant beside its "
                            "reference, or tried two values of one thing")  # fmt: skip
        raise UserError(f"there is nothing to draw in these {len(runs)} runs: {'; '.join(notes)}")
    return Drawn(files, notes)


def _problems(runs: Sequence[Run]) -> list[str]:
    found = [f"{run.name}: {problem}" for run in runs for problem in (*run.problems, *broken(run))]
    for run in runs:
        if run.state in ("diverged", "unfinished"):
            found.append(f"{run.name}: {run.state}; it is drawn as far as it goes")
    return found


def _differences(groups: Sequence[Group]) -> list[str]:
    keys = [key for key in differing(groups) if key.split(".")[0] != "method"]
    return [f"the recipes differ in more than method and seed: {', '.join(keys)}"] if keys else []


def _missing(files: Sequence[Path]) -> list[str]:
    names = {file.stem for file in files}
    wanted = {
        training.RATIO_NAME: f"no run has measure.metrics with {', '.join(training.RATIO)}",
        training.GEOMETRY_NAME: f"no run has measure.metrics with {', '.join(training.GEOMETRY)}",
        landscapes.SURFACES_NAME: "no run has a landscape: crsam landscape RUN... makes them",
        training.CONVERGENCE_NAME: "no run has training metrics",
    }
    return [f"{name} is not drawn: {why}" for name, why in wanted.items() if name not in names]
