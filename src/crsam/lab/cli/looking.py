"""Commands that look at runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from crsam.errors import UserError
from crsam.lab.cli.app import (
    Along,
    Device,
    Split,
    Statistics,
    Threads,
    app,
    world_of,
)
from crsam.lab.experiment import tables
from crsam.lab.experiment.landscape import View, landscape_runs
from crsam.lab.experiment.measure import DEFAULT, Setting, measure_run
from crsam.lab.experiment.robustness.evaluate import Asked, evaluate_robustness
from crsam.lab.experiment.robustness.show import show_robustness
from crsam.lab.experiment.run import evaluate_run
from crsam.lab.experiment.spectrum import spectrum_run
from crsam.lab.report.page import write_page
from crsam.lab.report.page.server import serve as serve_live


@app.command()
def evaluate(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.test,
    imagenet_c: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead: of CORRUPTION/SEVERITY/CLASS/*.")
    ] = None,
    imagenet_r: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead: of CLASS/*, renditions.")
    ] = None,
    cifar_c: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead: of CORRUPTION.npy.")
    ] = None,
    relative_to: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Whose errors an mCE is in.", show_default="AlexNet"),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Where the data is, if not where the recipe says.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Loss and accuracy of runs' models; or how they stand corruptions and renditions."""
    asked = Asked(imagenet_c, imagenet_r, cifar_c, relative_to)
    if relative_to is not None and not (imagenet_c or cifar_c):
        raise UserError("--relative-to is for --imagenet-c and --cifar-c")
    with world_of(device, threads) as world:
        if asked:
            found = evaluate_robustness(folders, asked, world, root)
            if world.is_main:
                show_robustness(folders, found)
            return
        for folder in folders:
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
        str, typer.Option(help="Names, separated by commas. crsam list metrics shows all.")
    ] = ",".join(DEFAULT),
    split: Annotated[Split, typer.Option(help="Which images to measure on.")] = Split.train,
    samples: Annotated[int, typer.Option(min=1, help="Largest number of images.")] = 5000,
    probes: Annotated[int, typer.Option(min=2, help="Number of random vectors of a trace.")] = 100,
    rho: Annotated[
        float, typer.Option(help="Radius of sharpness, approximation ratio and bound.")
    ] = Setting.rho,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images in a batch. Changes only the figures ..._of_batches.")
    ] = Setting.batch_size,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random vectors.")] = 0,
    spectrum: Annotated[
        bool, typer.Option("--spectrum", help="Also measure the density of the eigenvalues.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measures how flat the loss is at the model of a run. Estimates have a standard error."""
    names = [name.strip() for name in metrics.split(",")]
    with world_of(device, threads) as world:
        how = Setting(rho=rho, num_probes=probes, seed=seed, batch_size=batch_size)
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
        kind=along.value,
        dimensions=dimensions,
        points=points,
        span=span,
        split=split.value,
        samples=samples,
        seed=seed,
        batch_norm=None if batch_norm is None else batch_norm.value,
        at_once=at_once,
    )
    with world_of(device, threads) as world:
        found = landscape_runs(folders, view, stem=out, fresh=fresh, world=world)
        if world.is_main:
            tables.show_landscapes(found)


@app.command()
def figures(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs, or folders of; studies, or their summaries."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")],
    formats: Annotated[
        str, typer.Option("--format", help="pdf, svg, png, with commas between.")
    ] = "pdf",
    dpi: Annotated[int, typer.Option(min=10, max=2400, help="Dots to an inch.")] = 300,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the runs that a study or a sweep only chose by.")
    ] = False,
) -> None:
    """The paper's figures, and more, of runs and studies: for print, for any colour vision."""
    from crsam.lab.report.figures import write_figures

    kinds = [name.strip().lower() for name in formats.split(",") if name.strip()]
    drawn = write_figures(folders, out, kinds, dpi=dpi, everything=everything)
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
    everything: Annotated[
        bool, typer.Option("--all", help="Also the runs that a study or a sweep only chose by.")
    ] = False,
) -> None:
    """Tables, curves and landscapes of runs on one page that needs nothing but a browser."""
    if (serve is None) == (not folders):
        raise UserError("give the folders of runs, or --serve DIR, one of the two")
    if serve is not None:
        serve_live(serve, port)
        return
    runs = write_page(folders or [], out, title=title, everything=everything)
    unwell = sum(bool(one.problems) for one in runs)
    print(
        f"{out}: {len(runs)} run{'s' * (len(runs) > 1)}, {out.stat().st_size / 1e6:.2f} MB"
        + (f"; {unwell} could not be read as a whole, the page says why" if unwell else "")
    )
