"""The metrics of a run for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crsam.errors import UserError


class ScalarWriter:
    """Writes events into ``tensorboard/`` in the folder of a run.

    Args:
        folder: Of the run.
        step: Where the run goes on; what was written of later steps is not shown.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "log.tensorboard = true needs TensorBoard: pip install tensorboard"
            ) from None
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self._step = step

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """A line of metrics; one without a step is of the last one's."""
        self._step = values.get("step", self._step)
        for name, value in values.items():
            if name != "step":
                self._writer.add_scalar(f"{kind}/{name}", value, self._step)

    def close(self) -> None:
        self._writer.close()
