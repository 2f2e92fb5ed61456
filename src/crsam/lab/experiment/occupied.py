"""Refuses to train into a folder that holds somebody else's files."""

from __future__ import annotations

from pathlib import Path

from crsam.errors import UserError
from crsam.lab.data.listing import holds_classes

MARKS = (".lock", ".study", ".summary", "recipe.toml", "comparison.json", "study.json",
         "sweep.toml")  # fmt: skip
"""Each of these shows that crsam made the folder. A run that was killed leaves its lock."""
RUNS_BELOW = ("*/seed*", "*/sweep", "choose/*/*/seed*", "final/*/seed*", "equal-time/*/seed*")
"""Where the runs and sweeps of a recipe or a study lie.

A comparison that was killed leaves nothing else.
"""
SPLITS = ("train", "val", "test")
"""Folders in which each folder is a class of images."""
NOTES = (".log", ".out", ".err", ".txt", ".toml", ".md", ".sh", ".html")
"""Suffixes of files that people put beside a run. A shell opens its log before the run begins."""


def check_free(folder: Path) -> None:
    """Raises UserError unless runs may be written to a folder.

    They may if the folder does not exist yet, if there is nothing in it but hidden files and notes,
    or if crsam made it.
    """
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        if place.exists():
            raise UserError(
                f"{place} is a file, so {folder} cannot be a folder: give --out the name of a "
                "folder"
            )
    try:
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        others = [name for name in names if not _may_stay(folder / name)]
        if not others or _is_ours(folder, names):
            return
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    free = Path("runs") / folder.resolve().name
    if free.exists():
        free = free.with_name(f"{free.name}-new")
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    raise UserError(
        f"{folder} holds what crsam has not written ({shown}): give a new or an empty folder, such "
        f"as --out {free}"
    )


def check_apart(folder: Path, root: Path) -> None:
    """Raises UserError if a run in `folder` would be taken for a class of the images in `root`."""
    inside, around = folder.expanduser().resolve(), root.expanduser().resolve()
    if not inside.is_relative_to(around):
        return
    first = inside.relative_to(around).parts[:1]
    if holds_classes(around) or (first and first[0] in SPLITS and (around / first[0]).is_dir()):
        raise UserError(
            f"{folder} is among the images of data.root = {str(root)!r}, where a folder is a "
            "class: give --out a folder outside"
        )


def _may_stay(entry: Path) -> bool:
    hidden = entry.name.startswith(".")
    return hidden or (entry.suffix.lower() in NOTES and not entry.is_dir())


def _is_ours(folder: Path, names: list[str]) -> bool:
    if any(name in MARKS for name in names):
        return True
    below = (place for pattern in RUNS_BELOW for place in folder.glob(pattern))
    return any((place / mark).exists() for place in below for mark in MARKS)
