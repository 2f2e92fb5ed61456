"""Where a run starts from: ``init = FILE``, read once, before the first step."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from crsam.errors import UserError
from crsam.lab.models import Loaded, load_weights, read_weights
from crsam.lab.models.weights import weights_file


class Init(NamedTuple):
    """Weights to start from."""

    file: Path
    sha256: str
    weights: dict[str, Tensor]

    def into(self, model: nn.Module) -> Started:
        """Gives the model these weights.

        Raises:
            UserError: If they are not of such a model.
        """
        try:
            return Started(self.file, self.sha256, load_weights(model, self.weights))
        except UserError as error:
            raise UserError(f"init = {str(self.file)!r}: {error}") from None


class Started(NamedTuple):
    """What a run took from where."""

    file: Path
    sha256: str
    loaded: Loaded

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "num_taken": len(self.loaded.taken),
            "interpolated": list(self.loaded.resized),
            "new": list(self.loaded.new),
        }


def read_init(path: str) -> Init:
    """The weights of a file and what tells it from others.

    Raises:
        UserError: If there are no weights to be had from it.
    """
    try:
        weights = read_weights(path)
    except UserError as error:
        raise UserError(f"init: {error}") from None
    return Init(weights_file(path), fingerprint(path), weights)


def fingerprint(path: str) -> str:
    """SHA-256 of the file that `init` names."""
    file = weights_file(path)
    about = file.stat()
    return _sha256(file, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _sha256(file: Path, size: int, changed_ns: int) -> str:
    """Kept: a study looks at its runs anew after each of them."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
