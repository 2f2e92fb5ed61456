"""Running means of what the steps report, kept on the device until someone asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crsam.lab.train.distributed import World


class Tally:
    """Means over steps; a value that only some steps report is averaged over those.

    Example:
        >>> tally = Tally()
        >>> tally.add({"loss": torch.tensor(1.0)})
        >>> tally.add({"loss": torch.tensor(2.0), "sharpness": torch.tensor(0.5)})
        >>> tally.means()
        {'loss': 1.5, 'sharpness': 0.5}
    """

    def __init__(self) -> None:
        # By what was reported together: the sums, and of how many steps.
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Takes 0-d tensors, of one device."""
        names = tuple(values)
        row = torch.stack(list(values.values())).detach()
        if names in self._sums:
            self._sums[names] += row
        else:
            self._sums[names] = row.double()
        self._counts[names] = self._counts.get(names, 0) + 1

    def means(self, world: World | None = None) -> dict[str, float]:
        """The means over steps and processes, by name; the tally is empty afterwards."""
        world = world or World()
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, row in self._sums.items():
            for name, total in zip(names, (world.total(row) / world.size).tolist()):
                sums[name] = sums.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + self._counts[names]
        self._sums, self._counts = {}, {}
        return {name: total / counts[name] for name, total in sums.items()}

    def agree(self, world: World) -> None:
        """Gives every process the mean over all, so that any of them can go on with it alone."""
        if world.size > 1:
            for names, row in self._sums.items():
                self._sums[names] = world.total(row) / world.size

    def state_dict(self) -> dict[str, Any]:
        return {" ".join(names): (row, self._counts[names]) for names, row in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {tuple(names.split()): row for names, (row, _) in state.items()}
        self._counts = {tuple(names.split()): count for names, (_, count) in state.items()}
