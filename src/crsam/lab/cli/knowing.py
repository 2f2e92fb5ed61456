"""Commands that tell what there is, what was found, and what it costs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

import crsam
from crsam.errors import UserError, unknown
from crsam.lab import data
from crsam.lab.cli.app import (
    Device,
    Threads,
    app,
    world_of,
)
from crsam.lab.data.augment import augmentations
from crsam.lab.experiment import tables
from crsam.lab.experiment.bench import bench as time_steps
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.measure import METRICS
from crsam.lab.experiment.paper import TABLES, results
from crsam.lab.experiment.paper_tables import show_table
from crsam.lab.experiment.recipe import as_tables
from crsam.lab.experiment.toml import load_recipe, recipes, studies
from crsam.lab.models import models

TIMM = "timm:NAME (any model of timm's: pip install timm)"


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="cifar, imagenet or geometry.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="A folder of results in JSON, or of runs.",
            show_default="those we committed",
        ),
    ] = None,
) -> None:
    """The paper's figures beside ours, and a dash where we have none."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    show_table(name, results(folder))


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
    ] = "base,sam,crsam",
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over these.")] = 7,
    naive: Annotated[bool, typer.Option(help="Time naive implementations beside ours.")] = True,
    out: Annotated[Path | None, typer.Option(help="A JSON file to write.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """What a training step costs: time, images a second, share of the machine, memory."""
    words = list(overrides or [])
    if out is not None and not os.access(out.parent, os.W_OK):
        raise UserError(f"cannot write to {out.parent}")
    with world_of(device, threads) as world:
        own = "bench/gpu" if world.device.type == "cuda" else "bench/cpu"
        source = own if not words or "=" in words[0] else words.pop(0)
        recipe = load_recipe(source, words)
        base, given = recipe.optimizer.name, methods.split(",")
        names = [base, *crsam.methods()] if methods == "all" else given
        names = [base if name == "base" else name for name in names]
        costs = time_steps(source, words, names, world, rounds=rounds, naive=naive)
        about = environment(world.device)
        tables.show_costs(costs, f"{source} {shlex.join(words)}, {about['hardware']}")
        if out is not None:
            asked = {"recipe": as_tables(recipe), "rounds": rounds}
            content = {**about, **asked, "costs": [vars(cost) for cost in costs]}
            RunFolder(out.parent).write_json(out.name, content)


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
        shown = names if kind else tables.folded(names)
        shown = [*shown, TIMM] if name == "models" else shown
        if kind is None:
            print(f"{name:14} {', '.join(shown)}")
        elif kind == name:
            print("\n".join(shown))
