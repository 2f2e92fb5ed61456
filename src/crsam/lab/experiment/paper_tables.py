"""The paper's Tables 1 to 3 on the terminal, ours beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from crsam.lab.experiment.paper import Ours, Setup, longest, printed
from crsam.lab.experiment.tables import console, with_spread

NONE = "—"
FEWER = "*"
WIDTH = 120
"""Of the paper's tables, in characters."""
OF_THE_MEAN = "†"
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
IMAGES = {"ImageNet-1k": "imagenet", "ImageNet-C": "imagenet_c", "ImageNet-R": "imagenet_r"}
FIGURES = {
    "gradient_norm": "‖∇L‖",
    "hessian_trace": "Tr ∇²L",
    "normalized_trace": "C(w)",
    "test_accuracy": "accuracy",
}


GEOMETRY_NOTE = (
    "The paper's ‖∇L‖ is, in the authors' code, the mean over batches of 128 of the norms of the\n"
    "batches' gradients (gradient_norm_of_batches).\n"
    "† Ours: the norm of the gradient of the mean loss over the test images that were measured\n"
    "(gradient_norm). Over the same images this norm is the smaller one.\n"
    'Do not compare it, or the C(w) with it, with theirs. The tables "Measured" have this norm.\n'
    "The paper's C(w) is not its own Tr ∇²L / ‖∇L‖: {}."
)


def show_table(name: str, found: Sequence[Ours]) -> None:
    """One of the paper's tables: cifar, imagenet or geometry.

    Args:
        name: Of the table.
        found: Our own figures.
    """
    used = {"cifar": _cifar, "imagenet": _imagenet, "geometry": _geometry}[name](found)
    print()
    if not used:
        print("Of these we have none.")
        return
    for title, group in _alike(used).items():
        details = _grid(f"Ours: {title}", "contestant", "ρ", "accuracy", "seeds", "epochs", "decay",
                        "hardware", "file")  # fmt: skip
        for ours in group:
            counts = (str(ours.accuracy.num), str(ours.epochs), f"{ours.weight_decay:g}")
            cells = (ours.contestant, _rho(ours), with_spread(ours.accuracy), *counts)
            details.add_row(*cells, ours.hardware, ours.source.removesuffix(".json"))
        console().print(details)
        print()
    print(
        "Above stand those of most epochs, then closest to the recipe, of most seeds, the latest."
    )
    if name != "geometry":
        print(f"{FEWER} of fewer epochs than others in its row: not to be compared with those.")


def _cifar(found: Sequence[Ours]) -> list[Ours]:
    """Table 1; what of ours belongs to it."""
    methods = {"sgd": "base", "sam": "sam", "crsam": "crsam"}
    grid = _grid("Table 1: test accuracy in %, the paper's and ours", "model", "augment", "data",
                 "SGD", "ours", "SAM", "ours", "CR-SAM", "ours")  # fmt: skip
    used: list[Ours] = []
    for model, rows in printed("cifar").items():
        for data in ("cifar10", "cifar100"):
            for augment, figures in rows[data].items():
                mine = [_of(found, Setup(data, model, augment, m)) for m in methods.values()]
                used += [ours for each in mine for ours in each]
                cells = _beside([figures[key] for key in methods], mine)
                grid.add_row(rows["title"], augment, DATA[data], *cells)
        grid.add_section()
    _wide().print(grid)
    return used


def _imagenet(found: Sequence[Ours]) -> list[Ours]:
    """Table 2; what of ours belongs to it."""
    methods = {"vanilla": "base", "sam": "sam", "rsam": "rsam", "crsam": "crsam"}
    grid = _grid("Table 2: accuracy in %, the paper's and ours", "model", "data", "vanilla", "ours",
                 "SAM", "ours", "R-SAM", "ours", "CR-SAM", "ours")  # fmt: skip
    used: list[Ours] = []
    for model, rows in printed("imagenet").items():
        for data, figures in rows.items():
            if data == "title":
                continue
            setups = [Setup(IMAGES[data], model, "inception", m) for m in methods.values()]
            mine = [_of(found, setup) for setup in setups]
            used += [ours for each in mine for ours in each]
            grid.add_row(rows["title"], data, *_beside([figures[key] for key in methods], mine))
        grid.add_section()
    _wide().print(grid)
    return used


def _geometry(found: Sequence[Ours]) -> list[Ours]:
    """Table 3; ours also of other data, for which the paper has no figures."""
    headings = [h for title in FIGURES.values() for h in (title, "ours")]
    grid = _grid("Table 3: ResNet-18 on CIFAR-100, measured on test images", "method", *headings)
    measured = [ours for ours in found if ours.figures]
    not_theirs = []
    for method, figures in printed("geometry").items():
        setup = Setup("cifar100", "resnet18", "basic", "base" if method == "sgd" else method)
        mine = longest(_of(measured, setup))
        cells = [figures["title"]]
        for name in FIGURES:
            cells += [_as_printed(figures[name]), NONE if mine is None else _as_theirs(mine, name)]
        grid.add_row(*cells)
        quotient = figures["hessian_trace"][0] / figures["gradient_norm"][0]
        off = 100 * (figures["normalized_trace"][0] / quotient - 1)
        not_theirs.append(f"{figures['title']} {off:+.1f} %".replace(" -", " −"))
    _wide().print(grid)
    print(GEOMETRY_NOTE.format(", ".join(not_theirs)))
    for title, group in _alike(measured).items():
        print()
        keys = ("contestant", "ρ", "epochs", "decay")
        others = _grid(f"Measured: {title}", *keys, *FIGURES.values(), "file")
        for ours in group:
            cells = [ours.contestant, _rho(ours), str(ours.epochs), f"{ours.weight_decay:g}"]
            cells += [_figure(ours, name) for name in FIGURES]
            others.add_row(*cells, ours.source.removesuffix(".json"))
        console().print(others)
    return measured


def _alike(found: Sequence[Ours]) -> dict[str, list[Ours]]:
    """By model, data and augmentation; those that can be compared beside each other."""
    groups: dict[str, list[Ours]] = {}
    for ours in found:
        setup = ours.setup
        groups.setdefault(f"{setup.model} on {setup.data}, {setup.augment}", []).append(ours)
    for group in groups.values():
        group.sort(key=lambda ours: (-ours.epochs, ours.weight_decay, ours.source))
    return groups


def _rho(ours: Ours) -> str:
    return "" if ours.rho is None else f"{ours.rho:g}"


def _of(found: Sequence[Ours], setup: Setup) -> list[Ours]:
    return [ours for ours in found if ours.setup == setup]


def _wide() -> Console:
    """A narrower terminal breaks the lines. In a narrower console rich cuts digits off."""
    found = console()
    return found if found.width >= WIDTH else Console(width=WIDTH)


def _as_printed(figure: float | Sequence[float]) -> str:
    """With the paper's two digits, and its ± where it has one.

    Example:
        >>> _as_printed([32673.88, 1497.56]), _as_printed(68.4)
        ('32673.88 ± 1497.56', '68.40')
    """
    both = (figure,) if isinstance(figure, int | float) else figure
    return " ± ".join(f"{number:.2f}" for number in both)


def _beside(
    theirs: Sequence[float | Sequence[float]], ours: Sequence[Sequence[Ours]]
) -> Iterator[str]:
    """The cells of a row, by method; those of fewer epochs than others of it are marked."""
    shown = [longest(each) for each in ours]
    most = max((each.epochs for each in shown if each is not None), default=0)
    for figure, mine in zip(theirs, shown, strict=True):
        yield _as_printed(figure)
        if mine is None:
            yield NONE
        else:
            yield f"{mine.accuracy.mean:.2f}" + (FEWER if mine.epochs < most else "")


def _as_theirs(ours: Ours, name: str) -> str:
    """With the norm of the authors' code, where it was measured; otherwise marked."""
    if f"{name}_of_batches" in ours.figures:
        return _figure(ours, f"{name}_of_batches")
    shown = _figure(ours, name)
    of_the_mean = name in ("gradient_norm", "normalized_trace") and shown != NONE
    return shown + OF_THE_MEAN if of_the_mean else shown


def _figure(ours: Ours, name: str) -> str:
    if name == "test_accuracy":
        return f"{ours.accuracy.mean:.2f}"
    return f"{ours.figures[name].mean:.4g}" if name in ours.figures else NONE


def _grid(title: str, *headings: str) -> Table:
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    text = ("model", "augment", "data", "method", "contestant", "hardware", "file")
    for heading in headings:
        grid.add_column(
            heading,
            justify="left" if heading in text else "right",
            no_wrap=heading not in ("hardware", "file"),  # the first to give way
            overflow="fold",
        )
    return grid
