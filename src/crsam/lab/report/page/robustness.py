"""Tables of how the runs stand corruptions and renditions, as ``robustness.json`` has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from crsam.lab.report.groups import Group, is_number
from crsam.lab.report.page.geometry import Figures, table_of
from crsam.lab.report.runs import Run

SETS = {
    "imagenet_c": "ImageNet-C: accuracy, mean over severities",
    "cifar_c": "CIFAR-C: accuracy, mean over severities",
    "imagenet_r": "ImageNet-R",
}


def robustness(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A table for each set that some run was evaluated on."""
    tables = [table_of(title, _figures_on(name), groups) for name, title in SETS.items()]
    return [table for table in tables if table["columns"]]


def _figures_on(name: str) -> Callable[[Run], Figures]:
    def figures(run: Run) -> Figures:
        section = run.robustness.get(name)
        if not isinstance(section, dict):
            return {}
        # Means of a set with holes are null: such a run has single corruptions only.
        errors = section.get("errors", {})
        by_corruption = errors.items() if isinstance(errors, dict) else ()
        means = [(key, section.get(key)) for key in ("accuracy", "mean_accuracy", "mce")]
        single = [(key, 100 - value) for key, value in by_corruption if is_number(value)]
        return {key: (float(value), None) for key, value in [*means, *single] if is_number(value)}

    return figures
