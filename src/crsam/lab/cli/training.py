"""Commands that train."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from crsam._names import plain
from crsam.errors import UserError
from crsam.lab.cli.app import (
    Device,
    DryRun,
    Fresh,
    Out,
    Overrides,
    Source,
    Threads,
    app,
    command,
    default_folder,
    world_of,
)
from crsam.lab.experiment import tables
from crsam.lab.experiment.comparison import compare as compare_methods
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.fair.jobs import look
from crsam.lab.experiment.fair.show import show_plan, show_verdict
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.occupied import check_free
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import run
from crsam.lab.experiment.sweep import sweep as try_values
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.experiment.warmup import planned
from crsam.lab.report.page import write_page
from crsam.progress import say


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """SGD, SAM and CR-SAM on handwritten digits, three in ten training labels wrong."""
    recipe = load_recipe("demo")
    place = out or Path("runs/demo")
    with world_of("cpu", threads=1) as world:
        rows = compare_methods(recipe, ["sgd", "sam", "crsam"], seeds, place, world, fresh=fresh)
        if world.is_main:
            tables.show(
                rows, f"digits, 30 % of the training labels wrong, {seeds} seed{'s' * (seeds > 1)}"
            )
            started = sys.argv[0]
            program = "python -m crsam" if started.endswith("__main__.py") else started
            program = "crsam" if shutil.which("crsam") else program
            print(tables.NEXT_AFTER_DEMO.format(folder=place, crsam=program))
            write_page([place], place / "report.html", title="Digits, 30 % of the labels wrong")
            print(f"\nAll of it on one page, to open in a browser: {place / 'report.html'}")


@app.command()
def train(
    recipe: Source,
    overrides: Overrides = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Trains one model, or goes on where it was. Several GPUs: the same under torchrun."""
    asked = load_recipe(recipe, overrides or [])
    if dry_run:
        _show_plan(asked, [asked.method])
        return
    place = out or default_folder(recipe) / asked.method / f"seed{asked.seed}"
    with world_of(device, threads) as world:
        if world.is_main:
            _tell_idle(overrides, [asked.method])
            check_free(place)
        done = not fresh and RunFolder(place).result() is not None
        result = run(asked, place, world, fresh=fresh)
        if world.is_main:
            if done:
                say("This run has been done already; --fresh does it again.")
            tables.show_result(result, place)
    if result["diverged_at"] is not None:
        raise typer.Exit(1)


@app.command()
def compare(
    recipe: Source,
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="By name, with commas; the first is the reference.")
    ] = "base,sam,crsam",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from the recipe's on.")] = 3,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Trains several methods with the same seeds: means, and differences with their errors."""
    asked = load_recipe(recipe, overrides or [])
    if ":" in methods:
        raise UserError(
            f"--methods takes names alone, got {methods!r}: options are overrides, such as "
            "methods.crsam.form=linear, and two settings of one method are for crsam study"
        )
    names = [asked.with_method(name.strip()).method for name in methods.split(",")]
    if dry_run:
        _show_plan(asked, names)
        return
    place = out or default_folder(recipe)
    with world_of(device, threads) as world:
        if world.is_main:
            _tell_idle(overrides, names, "method")
        rows = compare_methods(asked, names, seeds, place, world, fresh=fresh)
        if world.is_main:
            tables.show(rows, f"{recipe}, {seeds} seed{'s' * (seeds > 1)}")
            print(f"runs and comparison.json are in {place}; a page of them: crsam report {place}")


def _show_plan(recipe: Recipe, methods: list[str]) -> None:
    """Prints the recipe as TOML, with its steps and warm-ups as comments."""
    print(to_toml(recipe), end="")
    for line in planned(recipe, methods):
        print(f"# {line}")


def _tell_idle(overrides: list[str] | None, methods: list[str], *others: str) -> None:
    """Says which overrides have no part in runs of these methods."""
    for text in overrides or []:
        table, *below = key = text.partition("=")[0].strip().split(".")
        idle = table == "methods" and below and plain(below[0]) not in map(plain, methods)
        if idle or key == [*others]:
            say(f"{text} has no part in this: it is of {', '.join(methods)}")


@app.command()
def study(
    source: Annotated[
        str, typer.Argument(metavar="STUDY", help="A shipped study (crsam list), or a TOML file.")
    ],
    overrides: Overrides = None,
    out: Out = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop cleanly when they are over, to go on later.")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="A small JSON file with every run, renewed after each.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    fresh: Fresh = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the runs, and how long they take.")
    ] = False,
) -> None:
    """A fair comparison: all chosen on validation images, then tested once, paired by seed.

    More workers: the same command once more.
    """
    asked = load_study(source, overrides or [])
    place = out or Path("runs/studies") / asked.name
    if dry_run:
        show_plan(look(asked, place))
        return
    with world_of(device, threads) as world:
        progress = conduct(asked, place, world, minutes=minutes, summary=summary, fresh=fresh)
        if world.is_main:
            show_verdict(progress)
            print(f"runs and study.json are in {place}")
            print(f"to draw them: crsam figures {place} -o figures/{asked.name}")


@app.command()
def sweep(
    recipe: Source,
    overrides: Overrides = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Over all workers.", show_default="the recipe's")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Looks for good values in the recipe's ranges. More workers: the same command once more."""
    asked = load_recipe(recipe, overrides or [])
    place = out or default_folder(recipe) / asked.method / "sweep"
    with world_of(device, threads) as world:
        found = try_values(asked, place, world, trials=trials)
        tables.show_trials(found, f"{recipe}, {asked.method}: {len(found)} trials")
        best = command(f"train {place}/best.toml --out {place}/best")
        print(f"the best, on all images: {best}")
