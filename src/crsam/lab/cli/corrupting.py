"""The command that corrupts images."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crsam.errors import UserError
from crsam.lab.cli.app import app
from crsam.lab.robustness.constants import NAMES
from crsam.lab.robustness.copy import corrupt_set
from crsam.lab.robustness.settings import Settings


class Format(StrEnum):
    jpeg = "jpeg"
    png = "png"


class Constants(StrEnum):
    imagenet = "imagenet"
    cifar = "cifar"


@app.command()
def corrupt(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="Of val/CLASS/* or CLASS/*, or CIFAR's files.")
    ],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The folder to write to.")],
    corruptions: Annotated[
        str, typer.Option(help="By name, with commas.", show_default="all 15")
    ] = ",".join(NAMES),
    severities: Annotated[str, typer.Option(help="With commas.")] = "1,2,3,4,5",
    images_per_class: Annotated[
        int | None, typer.Option(min=1, help="The first so many.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    constants: Annotated[
        Constants | None,
        typer.Option(help="How strong they are.", show_default="cifar for CIFAR, else imagenet"),
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(min=1, help="First take the middle; ImageNet-C: 224.", show_default="whole"),
    ] = None,
    file_format: Annotated[
        Format, typer.Option("--format", help="Of a folder's images.")
    ] = Format.jpeg,
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of JPEG.")] = Settings.quality,
    frost: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Photographs of frost.", show_default="our own panes"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one a core")
    ] = None,
) -> None:
    """A corrupted copy of images, as ImageNet-C and CIFAR-10-C are; again: goes on."""
    try:
        levels = [int(word) for word in severities.split(",")]
    except ValueError:
        raise UserError(f"severities must be numbers from 1 to 5, got {severities!r}") from None
    done = corrupt_set(
        source,
        dest,
        Settings(
            seed=seed,
            constants=None if constants is None else constants.value,
            format=file_format.value,
            quality=quality,
            crop=crop,
            frost=None if frost is None else str(frost.resolve()),
        ),
        names=[word.strip() for word in corruptions.split(",")],
        severities=levels,
        images_per_class=images_per_class,
        workers=workers,
    )
    left = f"; files that are no images: {len(done.unreadable)}" if done.unreadable else ""
    there = f", {done.there:,} were there already" if done.there else ""
    print(f"{dest}: {done.written:,} images written{there}{left}")
