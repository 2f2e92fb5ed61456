"""Densities of the Hessian's eigenvalues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crsam._arrays import arrays_in, content_of
from crsam.curvature import Density
from crsam.lab.report.figures import style
from crsam.lab.report.groups import Group

FLOOR = 1e-6
"""Densities below are not drawn: they are tails of the bells, not eigenvalues."""


def densities(groups: Sequence[Group]) -> Iterator[tuple[str, Any]]:
    """A figure for each split on which there is a spectrum: ``crsam measure RUN --spectrum``."""
    splits = sorted(
        {f.stem for g in groups for run in g.runs for f in run.path.glob("spectrum-*.npz")}
    )
    for stem in splits:
        found = [(i, group, density) for i, group in enumerate(groups)
                 if (density := _first(group, stem)) is not None]  # fmt: skip
        if found:
            yield stem, _drawn(found)


def _first(group: Group, stem: str) -> Density | None:
    read = (_read(run.path / f"{stem}.npz") for run in group.runs)
    return next((density for density in read if density is not None), None)


def _read(file: Path) -> Density | None:
    """The density in a file; None if there is no whole one."""
    try:
        found = arrays_in(content_of(file))
        nodes, weights = (torch.from_numpy(found[name]) for name in ("nodes", "weights"))
        return Density(nodes, weights, int(found["num_weights"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _drawn(found: Sequence[tuple[int, Group, Density]]) -> Any:
    figure = style.new_figure(2.5, 4.6)
    axes = figure.subplots()
    seen = torch.cat([d.nodes[d.weights > 0] for _, _, d in found])
    low, high = seen.min().item(), seen.max().item()
    width = max(high - low, 1e-12) / 150
    points = torch.linspace(low - 5 * width, high + 5 * width, 1500, dtype=torch.float64)
    for i, group, density in found:
        values = density.smoothed(points, width).numpy()
        axes.plot(
            points,
            np.where(values > FLOOR, values, np.nan),
            label=style.label(group),
            **style.line(i),
        )
    axes.set(xlabel="eigenvalue of the Hessian", ylabel="density", yscale="log")
    axes.set_ylim(bottom=FLOOR)
    axes.legend()
    return figure
