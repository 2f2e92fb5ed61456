"""The command line: each command parses, calls one function and prints."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

import crsam
from crsam import data
from crsam.data.augment import augmentations
from crsam.errors import UserError, unknown
from crsam.experiment import tables
from crsam.experiment.bench import bench as time_steps
from crsam.experiment.environment import environment
from crsam.experiment.fair.conduct import conduct
from crsam.experiment.fair.file import load_study
from crsam.experiment.fair.jobs import look
from crsam.experiment.fair.show import show_plan, show_verdict
from crsam.experiment.folder import RunFolder
from crsam.experiment.landscape import View, landscape_runs
from crsam.experiment.measure import DEFAULT, METRICS, Setting, measure_run
from crsam.experiment.paper import TABLES, results
from crsam.experiment.paper_tables import show_table
from crsam.experiment.recipe import as_tables
from crsam.experiment.run import evaluate_run, run
from crsam.experiment.spectrum import spectrum_run
from crsam.experiment.study import compare as compare_methods
from crsam.experiment.sweep import sweep as try_values
from crsam.experiment.toml import load_recipe, recipes, studies, to_toml
from crsam.models import models
from crsam.report.page import write_page
from crsam.report.page.server import serve as serve_live
from crsam.train.distributed import World, join
from crsam.train.interrupt import Stopped

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
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        print(f"crsam {crsam.__version__}, torch {torch.__version__}")
        raise typer.Exit


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
        print(to_toml(asked), end="")
        return
    place = out or default_folder(recipe) / asked.method / f"seed{asked.seed}"
    with world_of(device, threads) as world:
        result = run(asked, place, world, fresh=fresh)
        if world.is_main:
            tables.show_result(result, place)


@app.command()
def compare(
    recipe: Source,
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="By name, with commas; the first is the reference.")
    ] = "sgd,sam,crsam",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from the recipe's on.")] = 3,
    out: Out = None,
    device: Device = "auto",
    threads: Threads = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Trains several methods with the same seeds: means, and differences with their errors."""
    asked = load_recipe(recipe, overrides or [])
    names = [asked.with_method(name.strip()).method for name in methods.split(",")]
    if dry_run:
        print(to_toml(asked), end="")
        return
    place = out or default_folder(recipe)
    with world_of(device, threads) as world:
        rows = compare_methods(asked, names, seeds, place, world, fresh=fresh)
        if world.is_main:
            tables.show(rows, f"{recipe}, {seeds} seed{'s' * (seeds > 1)}")
            print(f"runs and comparison.json are in {place}; a page of them: crsam report {place}")


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the runs, and how long they take.")
    ] = False,
) -> None:
    """A fair comparison: all chosen on validation images, then tested once, paired by seed."""
    asked = load_study(source, overrides or [])
    place = out or Path("runs/studies") / asked.name
    if dry_run:
        show_plan(look(asked, place))
        return
    with world_of(device, threads) as world:
        progress = conduct(asked, place, world, minutes=minutes, summary=summary)
        if world.is_main:
            show_verdict(progress)
            print(f"runs and study.json are in {place}")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.test,
    root: Annotated[
        str | None, typer.Option(help="Where the data is, if not where the recipe says.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Loss and accuracy of a run's model."""
    with world_of(device, threads) as world:
        step, score = evaluate_run(folder, world, split.value, root)
        if world.is_main:
            print(
                f"{folder} after {step} steps, {split.value}: "
                f"accuracy {score.accuracy:.2f} %, loss {score.loss:.4f}"
            )


@app.command()
def measure(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    metrics: Annotated[
        str, typer.Option(help="By name, with commas; crsam list metrics shows all.")
    ] = ",".join(DEFAULT),
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.train,
    samples: Annotated[int, typer.Option(min=1, help="At most so many of them.")] = 5000,
    probes: Annotated[int, typer.Option(min=2, help="Random vectors of a trace.")] = 100,
    rho: Annotated[float, typer.Option(help="Radius of sharpness.")] = Setting.rho,
    seed: Annotated[int, typer.Option(min=0, help="Of the random vectors.")] = 0,
    spectrum: Annotated[
        bool, typer.Option("--spectrum", help="The density of the Hessian's eigenvalues too.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """How flat the place is that a run's model has come to, each figure with its error."""
    names = [name.strip() for name in metrics.split(",")]
    with world_of(device, threads) as world:
        how = Setting(rho=rho, num_probes=probes, seed=seed)
        found = measure_run(folder, names, split=split.value, samples=samples, how=how, world=world)
        if world.is_main:
            tables.show_figures(found, f"{folder}, {split.value} images")
            print(f"written to {folder}/measures-{split.value}.json")
        if spectrum and world.is_main:
            file = spectrum_run(folder, split=split.value, samples=samples, how=how, world=world)
            print(f"the density of eigenvalues is in {file}")


@app.command()
def landscape(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    along: Annotated[
        Along, typer.Option(help="Random directions, Hessian's, a line of 2 runs, a plane of 3.")
    ] = Along.filter,
    dimensions: Annotated[int, typer.Option(min=1, max=2, help="A line or a plane.")] = 2,
    points: Annotated[int, typer.Option(min=1, help="In each dimension.")] = View.points,
    span: Annotated[float, typer.Option(help="How far to go either way.")] = View.span,
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.train,
    samples: Annotated[int, typer.Option(min=1, help="At most so many of them.")] = View.samples,
    seed: Annotated[int, typer.Option(min=0, help="Of the directions.")] = 0,
    batch_norm: Annotated[
        Statistics | None,
        typer.Option(help="Statistics.", show_default="running; recomputed between runs"),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Points; for small nets on a GPU.")] = 1,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Name of the file in RUN.", show_default="landscape"),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over.")] = False,
) -> None:
    """The loss around the models of runs, or between them, as arrays beside their checkpoints."""
    view = View(
        along.value,
        dimensions,
        points,
        span,
        split.value,
        samples,
        seed,
        None if batch_norm is None else batch_norm.value,
        at_once,
    )
    with world_of(device, threads) as world:
        found = landscape_runs(folders, view, stem=out, fresh=fresh, world=world)
        if world.is_main:
            tables.show_landscapes(found)


@app.command()
def figures(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")],
    formats: Annotated[
        str, typer.Option("--format", help="pdf, svg, png, with commas between.")
    ] = "pdf",
    dpi: Annotated[int, typer.Option(min=10, help="Dots to an inch.")] = 300,
) -> None:
    """The paper's figures, and more, of runs: for print, and for all kinds of colour vision."""
    from crsam.report.figures import write_figures

    drawn = write_figures(folders, out, [name.strip() for name in formats.split(",")], dpi=dpi)
    for note in drawn.notes:
        print(note, file=sys.stderr)
    for file in drawn.files:
        print(file)


@app.command()
def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Runs, comparisons, or folders of such."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="Of the page.", show_default="the methods")] = "",
    serve: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead: watch this folder, live on this machine."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0: any.")] = 8017,
) -> None:
    """Tables, curves and landscapes of runs on one page that needs nothing but a browser."""
    if (serve is None) == (not folders):
        raise UserError("give the folders of runs, or --serve DIR, one of the two")
    if serve is not None:
        serve_live(serve, port)
        return
    runs = write_page(folders or [], out, title=title)
    unwell = sum(bool(one.problems) for one in runs)
    print(
        f"{out}: {len(runs)} run{'s' * (len(runs) > 1)}, {out.stat().st_size / 1e6:.2f} MB"
        + (f"; {unwell} could not be read as a whole, the page says why" if unwell else "")
    )


@app.command()
def bench(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="What to time; bench/gpu on a CUDA device, else bench/cpu, with changes.",
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(help='With commas, or all; options as in crsam:form="linear".')
    ] = "sgd,sam,crsam",
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over these.")] = 7,
    naive: Annotated[bool, typer.Option(help="Time naive implementations beside ours.")] = True,
    out: Annotated[Path | None, typer.Option(help="A JSON file to write.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """What a training step costs: time, images a second, share of the machine, memory."""
    words = list(overrides or [])
    with world_of(device, threads) as world:
        own = "bench/gpu" if world.device.type == "cuda" else "bench/cpu"
        source = own if not words or "=" in words[0] else words.pop(0)
        recipe = load_recipe(source, words)
        names = (
            [recipe.optimizer.name, *crsam.methods()] if methods == "all" else methods.split(",")
        )
        costs = time_steps(source, words, names, world, rounds=rounds, naive=naive)
        about = environment(world.device)
        tables.show_costs(costs, f"{source} {shlex.join(words)}, {about['hardware']}")
        if out is not None:
            asked = {"recipe": as_tables(recipe), "rounds": rounds}
            content = {**about, **asked, "costs": [vars(cost) for cost in costs]}
            RunFolder(out.parent).write_json(out.name, content)


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
        print(f"the best: crsam train {place}/best.toml; all runs are in {place}")


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="cifar, imagenet or geometry.")],
    folder: Annotated[
        Path | None,
        typer.Option("--results", help="Of JSON files.", show_default="those we committed"),
    ] = None,
) -> None:
    """The paper's figures beside ours, and a dash where we have none."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    show_table(name, results(folder))


@app.command("list")
def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="recipes, studies, methods, models, datasets, augmentations or metrics."
        ),
    ] = None,
) -> None:
    """What there is by name."""
    kinds = {
        "recipes": recipes(),
        "studies": studies(),
        "methods": crsam.methods(),
        "models": models(),
        "datasets": data.datasets(),
        "augmentations": list(augmentations()),
        "metrics": list(METRICS),
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    for name, names in kinds.items():
        if kind is None:
            print(f"{name:14} {', '.join(tables.folded(names))}")
        elif kind == name:
            print("\n".join(names))


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


def main() -> None:
    """Runs the command line: a user's mistake is one line and exit code 2."""
    try:
        app()
    except Stopped:
        if os.environ.get("RANK", "0") == "0":
            words = [word for word in sys.argv[1:] if word != "--fresh"]
            command = shlex.join(["crsam", *words])
            print(f"stopped; the same command goes on from here: {command}", file=sys.stderr)
        sys.exit(130)
    except (UserError, OSError) as error:
        if os.environ.get("CRSAM_TRACEBACK"):
            raise
        if os.environ.get("RANK", "0") == "0":
            print(f"crsam: {error}", file=sys.stderr)
        sys.exit(2)
