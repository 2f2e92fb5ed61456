"""Results as tables on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from crsam.lab.experiment.bench import EPOCH, Cost
from crsam.lab.experiment.comparison import Row, Spread
from crsam.lab.experiment.journal import Result
from crsam.lab.experiment.measure import Figure, Setting
from crsam.lab.experiment.sweep import Trial
from crsam.landscape import Surface

NEXT_AFTER_DEMO = """
The runs are in {folder}. Next:
  {crsam} measure {folder}/crsam/seed0         trace, top eigenvalue, … of one of these models
  {crsam} train digits method=asam               any method on any recipe
  {crsam} list                                   all of them
  {crsam} compare demo --methods sgd,asam,gsam   other methods, side by side
  {crsam} train cifar10/resnet18 --dry-run       the paper's set-up, before you start it"""


def show(rows: Sequence[Row], title: str) -> None:
    """A comparison: accuracy, its difference to the first row's, and how flat the place is."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("method")
    reference = f"against {rows[0].method}"
    for heading in ("accuracy, %", reference, "gradient norm", "sharpness", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.method + (f" ({row.num_diverged} diverged)" if row.num_diverged else ""),
            with_spread(row.test_accuracy),
            "" if row.difference is None else with_error(row.difference),
            significant(row.gradient_norm.mean),
            significant(row.sharpness.mean),
            f"{row.time:.1f}×",
        )
    console().print(table)
    several = rows[0].test_accuracy.num > 1
    how = ", ± standard deviation; differences seed by seed, ± standard error" if several else ""
    print(
        f"\nAccuracy on the test set after the last epoch{how}.\n"
        "Gradient norm and sharpness (how much the loss rises one step of length "
        f"{Setting.rho} uphill)\nof the training loss, without augmentation."
    )


def show_costs(costs: Sequence[Cost], title: str) -> None:
    """What steps cost, beside the first one's."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    first = costs[0]
    headings = (
        "ms/step",
        "spread",
        f"/{first.name}",
        "s/epoch",
        "images/s",
        "TFLOP/s",
        "peak",
        "MiB",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(
            cost.name,
            f"{cost.milliseconds:.2f}",
            f"{50 * (cost.quartiles[1] - cost.quartiles[0]) / cost.milliseconds:.1f} %",
            f"{cost.milliseconds / first.milliseconds:.2f}",
            f"{cost.epoch_seconds:.2f}",
            f"{cost.images_per_second:,.0f}",
            significant(cost.teraflops),
            f"{100 * cost.share:.0f} %",
            significant(cost.peak_mib),
        )
    console = Console()
    console.width = max(console.width, 96)
    console.print(table)
    print(
        "\nMedians over the rounds; spread: half of the range between the quartiles. An epoch is\n"
        f"{EPOCH:,} images, fetched and augmented. TFLOP/s of convolutions and matrix products;\n"
        "peak: their share of what plain matrix products reach here. MiB at the worst moment of\n"
        "a step, without the dataset."
    )


def show_figures(figures: Mapping[str, Figure], title: str) -> None:
    """Measurements, each with its error if it is an estimate, and below it what belongs to it."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("metric", "value", "± standard error"):
        table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
    for name, figure in figures.items():
        error = "" if figure.stderr is None else significant(figure.stderr)
        table.add_row(name, f"{figure.value:.6g}", error)
        for part, value in figure.parts.items():
            table.add_row(f"  {part}", f"{value:.6g}", "")
    console().print(table)


def show_landscapes(surfaces: Mapping[Path, Surface]) -> None:
    """What there is to be seen of each landscape, and where it is."""
    for file, surface in surfaces.items():
        finite = surface.loss[np.isfinite(surface.loss)]
        low, high = (significant(v) for v in (finite.min(), finite.max())) if finite.size else "——"
        more = (
            ""
            if finite.size == surface.loss.size
            else (f", not finite at {surface.loss.size - finite.size}")
        )
        size = " × ".join(str(n) for n in reversed(surface.loss.shape))
        print(f"{file}: {size} points, loss from {low} to {high}{more}")
    folders = " ".join(str(file.parent) for file in surfaces)
    print(f"to draw them: crsam figures {folders} -o figures")


def show_result(result: Result, folder: Path) -> None:
    """What came out of one run."""
    judged = [
        f"{kind} accuracy {result[f'{kind}_accuracy']:.2f} %, "
        f"loss {float('nan') if (loss := result[f'{kind}_loss']) is None else loss:.4f}"
        for kind in ("validation", "test")
        if result[f"{kind}_accuracy"] is not None
    ]
    print(
        f"{result['method']}, seed {result['seed']}: {', '.join(judged)}, "
        f"{result['steps']} steps in {result['seconds']:.0f} s "
        f"({result['images_per_second']:,.0f} images/s); {folder}"
    )
    if result["diverged_at"] is not None:
        print(
            f"The loss was not finite any more at step {result['diverged_at']}: "
            "try a smaller learning rate or ρ, or a warm-up."
        )


def console() -> Console:
    """Wide enough for all columns where there is no terminal to fit."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def show_trials(trials: Sequence[Trial], title: str, most: int = 20) -> None:
    """Trials of a sweep, the best one first."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    short = [key.rpartition(".")[2] for key in keys]
    names = [key if short.count(last) > 1 else last for key, last in zip(keys, short)]
    for heading in ("trial", "validation, %", "epochs", "", *names):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for trial in trials[:most]:
        accuracy = "—" if trial.accuracy is None else f"{trial.accuracy:.2f}"
        state = "" if trial.state == "complete" else trial.state
        values = (trial.values.get(key, "") for key in keys)
        said = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)
        table.add_row(str(trial.number), accuracy, str(trial.epochs), state, *said)
    console().print(table)
    if len(trials) > most:
        print(f"and {len(trials) - most} more")


def with_spread(value: Spread) -> str:
    return f"{value.mean:.2f}" + ("" if value.num < 2 else f" ± {value.std:.2f}")


def with_error(value: Spread) -> str:
    return f"{value.mean:+.2f}" + ("" if value.num < 2 else f" ± {value.error:.2f}")


def significant(value: float) -> str:
    """Three digits, however small."""
    return "—" if math.isnan(value) else f"{value:.3g}"


def folded(names: Sequence[str]) -> list[str]:
    """Names, those of a folder within a folder as one.

    Example:
        >>> folded(["demo", "cifar10/quick", "paper/cifar10/a", "paper/cifar10/b"])
        ['demo', 'cifar10/quick', 'paper/cifar10/… (2)']
    """
    deep = [name.rpartition("/")[0] for name in names if name.count("/") > 1]
    shown = [f"{name.rpartition('/')[0]}/… ({deep.count(name.rpartition('/')[0])})"
             if name.count("/") > 1 else name for name in names]  # fmt: skip
    return list(dict.fromkeys(shown))
