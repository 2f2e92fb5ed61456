"""What all commands have in common."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
import typer

import crsam
from crsam.errors import UserError
from crsam.train.distributed import World, join

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
Threads = Annotated[int | None, typer.Option(min=1, help="Of the CPU; one is best for small nets.")]
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
    if show:
        print(f"crsam {crsam.__version__}, torch {torch.__version__}")
        raise typer.Exit


def _import(name: str) -> None:
    """A module of the path or the current folder, or a file, which may import its neighbours."""
    is_file = name.endswith(".py")
    if is_file and not Path(name).is_file():
        raise UserError(f"--import: there is no file {name}")
    try:
        if is_file:
            _run_file(Path(name).resolve())
        else:
            sys.path.insert(0, str(Path.cwd()))
            importlib.import_module(name)
    except Exception as error:
        if os.environ.get("CRSAM_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"--import {name}: {what} (CRSAM_TRACEBACK=1 shows where)") from error


def _run_file(path: Path) -> None:
    """Runs this very file, whatever other modules of its name there are."""
    name = path.stem
    if name in sys.stdlib_module_names or name in sys.modules:
        name = f"{name} of {path.parent}"
    loader = SourceFileLoader(name, str(path))
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    sys.path.append(str(path.parent))  # not first: it may hold a random.py
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


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
