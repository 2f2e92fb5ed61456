"""What all commands have in common."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

import crsam
from crsam.errors import UserError
from crsam.lab.train.distributed import World, join
from crsam.lab.user_modules import import_file, import_module

app = typer.Typer(
    help="Curvature Regularized Sharpness-Aware Minimization, and the family it belongs to.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Source = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe (crsam list), or a TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as train.epochs=10 method=sam."),
]
Out = Annotated[Path | None, typer.Option(help="The folder to write to.", show_default="runs/…")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Number of CPU threads. Small networks are fastest with one."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over where there is a run already.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the resolved recipe.")]


class Split(StrEnum):
    train = "train"
    validation = "validation"
    test = "test"


class Along(StrEnum):
    filter = "filter"
    eigenvector = "eigenvector"
    line = "line"
    plane = "plane"


class Statistics(StrEnum):
    running = "running"
    recomputed = "recomputed"


@app.callback(invoke_without_command=True)
def before_all(
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="A Python file or module to import first: methods and models of your own.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    for name in own or []:
        _import(name)
    _imports[:] = own or []
    if show:
        print(f"crsam {crsam.__version__}, torch {torch.__version__}")
        raise typer.Exit


_imports: list[str] = []


def command(words: str) -> str:
    """What to type next: the words, behind what this process was told to import."""
    return " ".join(["crsam", *(f"--import {shlex.quote(name)}" for name in _imports), words])


def check_order(words: list[str]) -> None:
    """Raises UserError for an ``--import`` behind the command, which is not one of its options."""
    commands = {each.name or each.callback.__name__ for each in app.registered_commands
                if each.callback is not None}  # fmt: skip
    files = [i + 1 for i, word in enumerate(words) if word == "--import"]
    places = (i for i, word in enumerate(words) if word in commands and i not in files)
    first = next(places, len(words))
    if any(word.partition("=")[0] == "--import" for word in words[first:]):
        raise UserError(f"--import goes before the command: crsam --import FILE {words[first]} …")


def _import(name: str) -> None:
    is_file = name.endswith(".py")
    if is_file and not Path(name).is_file():
        raise UserError(f"--import: there is no file {name}")
    try:
        if is_file:
            import_file(Path(name))
        else:
            import_module(name)
    except UserError as error:
        raise UserError(f"--import {name}: {error}") from error
    except Exception as error:
        if os.environ.get("CRSAM_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"--import {name}: {what} (CRSAM_TRACEBACK=1 shows where)") from error


def default_folder(source: str) -> Path:
    """``runs/cifar10/resnet18`` for a shipped recipe, ``runs/mine`` for ``some/mine.toml``."""
    name = Path(source).stem if source.endswith(".toml") else source
    return Path("runs") / name


@contextmanager
def world_of(device: str, threads: int | None) -> Iterator[World]:
    if threads is not None:
        torch.set_num_threads(threads)
    with join(device) as world:
        yield world
