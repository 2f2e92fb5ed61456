"""Tables of robustness on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.table import Table

from crsam.lab.experiment.robustness.section import Section
from crsam.lab.experiment.tables import console
from crsam.lab.robustness.constants import NAMES, SEVERITIES

KINDS = {"noise": NAMES[:3], "blur": NAMES[3:7], "weather": NAMES[7:11], "digital": NAMES[11:]}
TITLES = {"imagenet_c": "ImageNet-C", "cifar_c": "CIFAR-C", "imagenet_r": "ImageNet-R"}


def show_robustness(folders: Sequence[Path], found: Sequence[dict[str, Section]]) -> None:
    """All sets of all runs: every severity of one run, or a row for each of several."""
    for name in found[0]:
        sections = [each[name] for each in found]
        if name == "imagenet_r":
            for folder, section in zip(folders, sections):
                print(_renditions(folder, section))
            continue
        first = sections[0]
        title = f"{TITLES[name]}: {first['num_images']:,} images a severity, {_classes(first)}"
        print(title)
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        if len(folders) == 1:
            _by_severity(table, first)
        else:
            _by_run(table, folders, sections)
        console().print(table)
        for folder, section in zip(folders, sections):
            print(f"{folder}: {summary(section)}")
        print(_note(first))


def summary(section: Section) -> str:
    """The means in a line, and of what they are.

    Example:
        >>> summary({"mean_accuracy": None, "mce": None, "num_corruptions": 14,
        ...          "missing": ["fog/3"], "of_those_there": {"mean_accuracy": 61.234}})
        'mean accuracy 61.23 % over 14 of 15 corruptions; missing: fog/3'
    """
    means = section.get("of_those_there", section)
    if means["mean_accuracy"] is None:
        return f"no corruption has all five severities; missing: {', '.join(section['missing'])}"
    words = f"mean accuracy {means['mean_accuracy']:.2f} %"
    if means.get("mce") is not None:
        words += f", mCE {means['mce']:.2f} %"
    if not section["missing"]:
        return words
    missing = ", ".join(section["missing"])
    return (
        f"{words} over {section['num_corruptions']} of {len(NAMES)} corruptions; missing: {missing}"
    )


def _by_severity(table: Table, section: Section) -> None:
    headings = ["corruption", *(f"severity {s}" for s in SEVERITIES), "mean"]
    headings += ["CE, %"] if section["relative_errors"] else []
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "corruption" else "right")
    for name in NAMES:
        cells = [_number(value) for value in section["accuracy"][name]]
        error = section["errors"].get(name)
        cells.append(_number(None if error is None else 100 - error))
        if section["relative_errors"]:
            cells.append(_number(section["relative_errors"].get(name)))
        table.add_row(name, *cells)


def _by_run(table: Table, folders: Sequence[Path], sections: Sequence[Section]) -> None:
    table.add_column("run", overflow="fold")
    has_ce = any(section["relative_errors"] for section in sections)
    for heading in (*KINDS, "mean", *(["mCE, %"] if has_ce else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for folder, section in zip(folders, sections):
        errors, means = section["errors"], section.get("of_those_there", section)
        kinds = [
            100 - fmean(errors[name] for name in names) if all(n in errors for n in names) else None
            for names in KINDS.values()
        ]
        cells = [*kinds, means["mean_accuracy"], *([means.get("mce")] if has_ce else [])]
        table.add_row(str(folder), *map(_number, cells))


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _classes(section: Section) -> str:
    own, here = section.get("num_classes_of_run"), section["num_classes"]
    return f"{here} classes" if own in (None, here) else f"{here} of the run's {own} classes"


def _note(section: Section) -> str:
    relative = section["relative_to"]
    if relative is None:
        return (
            "Accuracy in per cent. No mCE, which is for ImageNet's 1000 classes; "
            "--relative-to RUN gives one."
        )
    return f"Accuracy in per cent; CE: errors in per cent of those of {relative}, mCE: their mean."


def _renditions(folder: Path, section: Section) -> str:
    common, own = section["num_classes"], section["num_classes_of_run"]
    of_set = section["num_classes_of_set"]
    some = "" if common == of_set else f", of the {of_set} there"
    chose = "" if common == own else f"; the model chose among these, not among all its {own}"
    return (
        f"{folder}: ImageNet-R accuracy {section['accuracy']:.2f} % on {section['num_images']:,} "
        f"images of {common} classes{some}{chose}"
    )
