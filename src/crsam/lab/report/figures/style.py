"""How figures look, and how they are written.

Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart;
every group has a line style and a marker of its own besides. Maps are viridis: even in lightness.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import crsam
from crsam._files import write
from crsam.errors import UserError
from crsam.lab.report.groups import Group

WIDTH = 7.0
"""Inches: two columns of a conference paper."""
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999933")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
MARKERS = "osD^vP*X"
MAP = "viridis"
NOT_THERE = "#dddddd"
"""The colour of what was not evaluated."""
SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "axes3d.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text that can be searched, as journals ask
    "svg.hashsalt": "crsam",  # the same file for the same numbers
}
NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def check_matplotlib() -> None:
    """Raises UserError if there is none."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("figures need matplotlib: pip install matplotlib") from None


@contextmanager
def printed() -> Iterator[None]:
    """Within, figures look as they should in print."""
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}):
        yield


def new_figure(height: float, width: float = WIDTH) -> Any:
    """An empty figure that no window and no global state knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def legend_above(figure: Any, handles: Sequence[Any], most: int) -> None:
    """The key of a whole figure, in as many columns as fit its width; for more rows it grows.

    Args:
        figure: Without a key.
        handles: With their labels.
        most: Columns.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer, most = FigureCanvasAgg(figure).get_renderer(), min(len(handles), most)
    for columns in range(most, 0, -1):
        legend = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
        with _any_name():
            width = legend.get_window_extent(renderer).width
        if columns == 1 or width <= figure.bbox.width:
            more = math.ceil(len(handles) / columns) - math.ceil(len(handles) / most)
            figure.set_figheight(figure.get_figheight() + 0.18 * more)
            return
        legend.remove()


def save(
    figure: Any, folder: Path, name: str, formats: Sequence[str], dpi: int = 300
) -> list[Path]:
    """Writes a figure in each of the formats; a file is whole or not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    files = []
    for kind in formats:
        buffer = io.BytesIO()
        with _any_name():
            figure.savefig(buffer, format=kind, metadata=NO_DATE[kind], dpi=dpi)
        write(folder / f"{name}.{kind}", buffer.getvalue())
        files.append(folder / f"{name}.{kind}")
    return files


@contextmanager
def _any_name() -> Iterator[None]:
    """One in letters that the font lacks, or more of them than fit, are no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing|constrained_layout not applied")
        yield


def color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def outlined() -> list[Any]:
    """For white text on a map, to be read on bright places too."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=1.5, foreground="#333333")]


def line(index: int) -> dict[str, Any]:
    """What the line of a group looks like: where the colours begin anew, the dashes are others."""
    dash = (index + index // len(COLORS)) % len(DASHES)
    return {"color": color(index), "linestyle": DASHES[dash]}


def marker(index: int) -> str:
    return MARKERS[(index + index // len(COLORS)) % len(MARKERS)]


def label(group: Group) -> str:
    """The group as papers print it: ``CR-SAM, rho 0.1``."""
    method = group.method
    if not method or not group.label.startswith(method):
        return text(group.label)
    return text(title(method) + group.label[len(method) :])


def text(words: Any) -> str:
    r"""Words of a user's as they are: no formulas, and nothing that hides them in a legend.

    Example:
        >>> text("_a$b")
        ' _a\\$b'
    """
    found = str(words).replace("$", r"\$")
    return f" {found}" if found.startswith("_") else found


def title(method: str) -> str:
    """A method's name as papers print it.

    Example:
        >>> title("crsam"), title("looksam"), title("adamw"), title("mine")
        ('CR-SAM', 'LookSAM', 'AdamW', 'mine')
    """
    if method == "crsam":
        return "CR-SAM"
    known = [*vars(torch.optim), *crsam.__all__]
    return next((name for name in known if name.lower() == method.lower()), method)


def with_seeds(group: Group) -> str:
    """The label, how many seeds it stands for, and what became of them."""
    diverged = sum(run.state == "diverged" for run in group.runs)
    unfinished = sum(run.state == "unfinished" for run in group.runs)
    words = [f"{len(group.runs)} seeds"] if len(group.runs) > 1 else []
    words += [f"{diverged} diverged"] if diverged else []
    words += [f"{unfinished} unfinished"] if unfinished else []
    return label(group) + (f" ({', '.join(words)})" if words else "")
