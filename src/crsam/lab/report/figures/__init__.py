"""Figures of runs and studies for print: the paper's, and what else one wants to see.

Needs matplotlib, the extra ``report``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from crsam.errors import UserError, unknown
from crsam.lab.report.figures import landscapes, spectra, studies, style, training
from crsam.lab.report.figures.landscapes import broken
from crsam.lab.report.groups import Group, differing, grouped
from crsam.lab.report.runs import Run, read_runs, tested
from crsam.lab.report.studies import read_studies, summaries

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


MISSING_OF_RUNS = {
    training.RATIO_NAME: f"no run has measure.metrics with {', '.join(training.RATIO)}",
    training.GEOMETRY_NAME: f"no run has measure.metrics with {', '.join(training.GEOMETRY)}",
    landscapes.SURFACES_NAME: "no run has a landscape: crsam landscape RUN... makes them",
    training.CONVERGENCE_NAME: "no run has training metrics",
}
MISSING_OF_STUDIES = {
    studies.LEADS_NAME: "no study has tested a contestant beside its reference",
    studies.CHOICE_NAME: "no study has tried two values of a number",
}
"""Why a figure that people look for is not there."""


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
    everything: bool = False,
) -> Drawn:
    """Draws every figure for which the runs and studies have the numbers.

    Args:
        paths: Folders of runs, of comparisons, of studies, or of several such; and summaries of
            studies, or folders of them. Those that ask the same of other seeds share a panel.
        out: The folder to write to; it is made.
        formats: Any of ``pdf``, ``svg`` and ``png``.
        dpi: Dots to an inch, of PNG files and of the surfaces in the others.
        everything: Also the runs that a study or a sweep only chose by.

    Returns:
        Which files were written, and what could not be drawn, and why.

    Raises:
        UserError: If there is no run, nothing to draw, no such format, or no matplotlib.
    """
    for name in formats or [""]:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    style.check_matplotlib()
    asked, problems = read_studies(paths)
    folders = [path for path in paths if not Path(path).is_file()]  # or not there: it is told
    found = _runs_of(folders)
    runs = found if everything else tested(found)
    groups = grouped(run for run in runs if run.state != "broken")
    place = Path(out)
    files: list[Path] = []
    with style.printed():
        of_runs = [make(groups) for make in MAKERS] if runs else []
        for name, figure in chain(*of_runs, studies.leads(asked), studies.choice(asked)):
            files += style.save(figure, place, name, formats, dpi)
    notes = [*_problems(runs), *_differences(groups), *problems]
    notes += [note for study in asked for note in (*study.notes, *study.left_out())]
    if len(runs) < len(found):
        notes.append(f"{len(found) - len(runs)} runs only chose, and are left out (--all)")
    notes += _missing(files, MISSING_OF_RUNS if runs else {})
    notes += _missing(files, MISSING_OF_STUDIES if asked else {})
    if not files:
        of = f" in these {len(runs)} runs" if runs else ""
        raise UserError(f"there is nothing to draw{of}: {'; '.join(notes)}")
    return Drawn(files, notes)


def _runs_of(folders: Sequence[str | Path]) -> list[Run]:
    """Of a study that has not begun there are none."""
    try:
        return read_runs(folders) if folders else []
    except UserError:
        if all(summaries(Path(folder)) for folder in folders):
            return []
        raise


def _problems(runs: Sequence[Run]) -> list[str]:
    found = [f"{run.name}: {problem}" for run in runs for problem in (*run.problems, *broken(run))]
    for run in runs:
        if run.state in ("diverged", "unfinished"):
            found.append(f"{run.name}: {run.state}; it is drawn as far as it goes")
    return found


def _differences(groups: Sequence[Group]) -> list[str]:
    keys = [key for key in differing(groups) if key.split(".")[0] != "method"]
    return [f"the recipes differ in more than method and seed: {', '.join(keys)}"] if keys else []


def _missing(files: Sequence[Path], wanted: Mapping[str, str]) -> list[str]:
    names = {file.stem for file in files}
    return [f"{name} is not drawn: {why}" for name, why in wanted.items() if name not in names]
