"""A corrupted copy of a folder of images, as ImageNet-C has it."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from crsam.errors import UserError
from crsam.lab.data.decoder import View, in_colour, middle_of
from crsam.lab.data.folder import MIDDLE
from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.corrupt import LEAST_SIDE, check_asked
from crsam.lab.robustness.layouts import Cell, files_by_class
from crsam.lab.robustness.settings import Copied, Settings, begin, expect
from crsam.lab.robustness.workers import number_of, worked
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.progress import bar, say

SPLITS = ("val", "test")


class Done(NamedTuple):
    """What came of one image."""

    written: int
    trouble: str | None


def corrupt_folder(
    source: Path,
    dest: Path,
    settings: Settings | None = None,
    *,
    names: Sequence[str] = NAMES,
    severities: Sequence[int] = SEVERITIES,
    images_per_class: int | None = None,
    workers: int | None = None,
) -> Copied:
    """Writes ``dest/CORRUPTION/SEVERITY/CLASS/file`` for each image of a folder.

    An image that is there already stays; each appears only when it is whole. What it holds is
    decided by the settings, its class and the name of its file, not by other images or workers.

    Args:
        source: Holds ``val/CLASS`` or ``test/CLASS``, or ``CLASS`` itself.
        dest: The folder to write to.
        settings: See `Settings`.
        names: The corruptions.
        severities: Of each.
        images_per_class: The first so many, by name; None: all.
        workers: Processes; None: one for each core, or none for less than 1,000 images.

    Raises:
        UserError: If there are no images, or the folder holds something else.
    """
    settings = settings or Settings()
    settings = replace(settings, constants=settings.constants or "imagenet")
    check_asked(list(names), list(severities))
    below = [folder for split in SPLITS if (folder := source / split).is_dir()]
    files = files_by_class(below[0] if below else source)
    if not below and source.resolve().name not in SPLITS:
        say(f"{source} has no folder val or test: all of its images are copied, also those that a "
            "run on it trains on")  # fmt: skip
    cells = [(name, severity) for name in names for severity in severities]
    images = [
        (path, f"{label}/{name}")
        for label, paths in files.items()
        for path, name in zip(paths[:images_per_class], _names(paths, settings))
    ]
    settings.check_frost(names)
    begin(dest, settings, source, len(images))
    for name, severity in cells:
        for label in files:
            (dest / name / str(severity) / label).mkdir(parents=True, exist_ok=True)
    work = functools.partial(_corrupt_file, dest=dest, cells=cells, settings=settings)
    total, written, unreadable = len(images) * len(cells), 0, []
    with stoppable() as stop, bar("corrupting", total) as advance:
        for done in worked(work, images, number_of(workers, total)):
            written += done.written
            if done.trouble is not None:
                say(f"{done.trouble}: left out")
                unreadable.append(done.trouble)
            advance(len(cells))
            if stop.asked:
                raise Stopped
    expect(dest, len(images) - len(unreadable))
    readable = total - len(unreadable) * len(cells)
    return Copied(written, readable - written, tuple(unreadable))


def _names(paths: Sequence[str], settings: Settings) -> Iterator[str]:
    """What the files of a class are called in the copy: as they are, where the suffix is right."""
    right = (".jpg", ".jpeg") if settings.format == "jpeg" else (".png",)
    seen: dict[str, str] = {}
    for path in paths:
        file = Path(path)
        name = file.name if file.suffix.lower() in right else f"{file.stem}{right[0]}"
        if name in seen:
            raise UserError(f"{path} and {seen[name]} would both be {name} in the copy: rename one")
        seen[name] = path
        yield name


def _corrupt_file(
    image: tuple[str, str], dest: Path, cells: Sequence[Cell], settings: Settings
) -> Done:
    path, key = image
    places = {cell: os.path.join(dest, cell[0], str(cell[1]), key) for cell in cells}
    wanted = [cell for cell, place in places.items() if not os.path.exists(place)]
    if not wanted:
        return Done(0, None)
    try:
        with Image.open(path) as file:
            picture = in_colour(file)
    except Exception as error:  # of a damaged file, a decoder may raise anything
        reason = " ".join(str(error).split())
        return Done(0, f"{path} cannot be read as an image: {reason}")
    if min(picture.size) < LEAST_SIDE:
        return Done(0, f"{path} is too small, {picture.width} × {picture.height} pixels")
    if settings.crop is not None:
        view = View(settings.crop, settings.crop, middle=MIDDLE)
        picture = middle_of(picture, view, picture.size)
    pixels = np.asarray(picture)
    for name, severity in wanted:
        found = settings.corrupted(pixels, name, severity, key)
        buffer = io.BytesIO()
        options = {"quality": settings.quality} if settings.format == "jpeg" else {}
        Image.fromarray(found).save(buffer, settings.format.upper(), **options)
        place = places[name, severity]
        beside = f"{os.path.dirname(place)}/.{os.path.basename(place)}"
        with open(beside, "wb") as out:
            out.write(buffer.getbuffer())
        os.replace(beside, place)
    return Done(len(wanted), None)
