"""The folder of a run: what is in it, and that it is never half-written.

``recipe.toml`` (resolved), ``environment.json``, ``data.json`` (classes, shape and mean of the
images), ``metrics.jsonl`` (a line every so often; nothing in it depends on the clock),
``checkpoint.pt``, ``checkpoint.previous.pt`` (the one before it) and, once the run has ended,
``result.json``; ``init.json`` where the run began from a file of weights. Later commands put what
they find of the model beside it:
``measures-SPLIT.json``, ``spectrum-SPLIT.npz``, ``landscape.npz``, ``robustness.json``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from crsam import _files
from crsam.errors import UserError
from crsam.lab._same import has_no_part
from crsam.lab.experiment.init import fingerprint
from crsam.lab.experiment.literal import literal
from crsam.lab.experiment.locks import claimed
from crsam.lab.experiment.occupied import check_free
from crsam.lab.experiment.recipe import Recipe, differences
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.models.weights import weights_file
from crsam.lab.user_modules import changed
from crsam.progress import say_once

OF_THE_MODEL = ("result.json", "checkpoint.pt", "checkpoint.previous.pt", "metrics.jsonl",
                "init.json", "robustness.json", "measures-*.json", "spectrum-*.npz",
                "landscape*.npz", "landscape*.pt")  # fmt: skip
"""Files that belong to a run's weights. A run that starts over deletes them."""


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.previous_file = self.path / "checkpoint.previous.pt"
        """The checkpoint before. A run goes on from it if the newest one is damaged."""
        self.result_file = self.path / "result.json"
        self.init_file = self.path / "init.json"
        self.environment_file = self.path / "environment.json"
        self.lock_file = self.path / ".lock"
        self._made: list[Path] = []
        """What was not there before the claim: the folder, and those around it."""

    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            UserError: If there is no run here.
        """
        if not self.path.is_dir():
            raise UserError(f"there is no folder {self.path}")
        if not self.recipe_file.is_file():
            depths = ("*", "*/*", "*/*/*")
            below = [file for depth in depths for file in self.path.glob(f"{depth}/recipe.toml")]
            such = f"; there are {len(below)} below it, such as " if below else ""
            such += str(min(below).parent) if below else ""
            raise UserError(f"{self.path} is not the folder of a run: it has no recipe.toml{such}")
        return load_recipe(self.recipe_file)

    def result(self) -> dict[str, Any] | None:
        """What came out, if the run has ended."""
        return _files.read_json(self.result_file)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines so far."""
        try:
            return [json.loads(line) for line in self.metrics_file.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(f"{self.metrics_file} cannot be read: {error}") from error

    def environment(self) -> dict[str, Any]:
        """Where the run was made; nothing if its folder does not say."""
        return _files.read_json(self.environment_file) or {}

    def measures(self, split: str) -> dict[str, Any] | None:
        """What ``crsam measure`` wrote of one of the splits, if it did."""
        return _files.read_json(self.path / f"measures-{split}.json")

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Keeps other processes from training into the same folder.

        Raises:
            UserError: If another process does, or if the folder holds somebody else's files.
        """
        check_free(self.path)
        with ExitStack() as stack:
            try:
                self._made = [each for each in (self.path, *self.path.parents) if not each.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                claim = stack.enter_context(claimed(self.lock_file))
            except OSError as error:
                raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
            if claim is None:
                raise UserError(f"another process is training into {self.path}")
            yield

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run to go on with, or its result."""
        return self.result_file.exists() or self.has_checkpoint

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from.

        Without hard links, a run that is killed while it saves may leave the previous one only.
        """
        return self.checkpoint_file.exists() or self.previous_file.exists()

    def remove_checkpoints(self) -> None:
        """Deletes the newest checkpoint and the one before it."""
        self.checkpoint_file.unlink(missing_ok=True)
        self.previous_file.unlink(missing_ok=True)

    def check_recipe(self, recipe: Recipe) -> None:
        """Raises UserError unless the run here is one of this recipe."""
        there = self.recipe()
        lines = differences(there, recipe)
        other = [
            line for line in lines if not has_no_part(line.partition(":")[0], "log.tensorboard")
        ]
        options = self._options() if there.method == recipe.method else None
        if options is not None:  # said or by default, then or now: what counts is what they are
            table = f"methods.{recipe.method}."
            here = json.loads(json.dumps(finite(recipe.all_method_options)))
            both = {f"{table}{name}" for name in options.keys() & here.keys()}
            if f"{table}warmup" in both or recipe.method == recipe.optimizer.name:
                both.add("train.rho_warmup")  # it is in the options, or there is no ρ
            other = [line for line in other if line.partition(":")[0] not in both] + [
                f"{table}{name}: {literal(value)} there, {literal(here[name])} here"
                for name, value in options.items()
                if name in here and here[name] != value
            ]
        if other:
            more = f" and {len(other) - 3} more" if len(other) > 3 else ""
            raise UserError(
                f"{self.path} holds a run of another recipe ({'; '.join(other[:3])}{more}): "
                "give another --out, or --fresh to start over"
            )
        self._check_init(recipe)
        self._compare_imports()

    def _options(self) -> dict[str, Any] | None:
        """All that the method was given, or had by default; None for a run that has not kept it."""
        return self.environment().get("options")

    def _compare_imports(self) -> None:
        """Says where methods or models of one's own have changed, for better or worse."""
        for name in changed(self.environment().get("imports", {})):
            say_once(
                f"{self.path}: {name} has changed since the run there began, which is of the file "
                "as it was; --fresh starts it over"
            )

    def _check_init(self, recipe: Recipe) -> None:
        """Refuses a file that was changed since; one that is gone is not needed any more."""
        began = None if recipe.init is None else _files.read_json(self.init_file)
        if recipe.init is None or began is None:
            return
        if weights_file(recipe.init).is_file() and fingerprint(recipe.init) != began["sha256"]:
            raise UserError(
                f"{began['file']} has changed since the run in {self.path} began from it: "
                "give another --out, or --fresh to start over"
            )

    def check(self, recipe: Recipe, fresh: bool) -> None:
        """Raises UserError if a run of this recipe cannot start or go on here."""
        own = (self.checkpoint_file.resolve(), self.previous_file.resolve())
        if recipe.init and weights_file(recipe.init).resolve() in own:
            raise UserError(
                f"init = {recipe.init!r}: a run cannot begin from a checkpoint that it will "
                "overwrite. Give another --out"
            )
        if self.begun and not fresh:  # else nothing is lost
            self.check_recipe(recipe)

    def start(self, recipe: Recipe, environment: dict[str, Any], fresh: bool) -> None:
        """Makes the folder one of this recipe's.

        Args:
            recipe: Of the run that is to start or go on.
            environment: Written beside it.
            fresh: Forget a run that is already there.

        Raises:
            UserError: If it holds a run of another recipe.
        """
        self.check(recipe, fresh)
        if fresh:
            for pattern in OF_THE_MODEL:
                for file in self.path.glob(pattern):
                    file.unlink()
        if self.result() is None:
            _files.write(self.recipe_file, to_toml(recipe).encode())
            self.write_json(self.environment_file.name, environment)

    def leave_nothing(self) -> None:
        """Removes the folders that the claim has made, if there is no more in them than that."""
        if [entry.name for entry in self.path.iterdir()] == [self.lock_file.name]:
            with suppress(OSError):  # another run may be in one of them
                self.lock_file.unlink()
                for each in self._made:
                    each.rmdir()

    def write_json(self, name: str, content: Any) -> None:
        text = json.dumps(finite(content), indent=1, allow_nan=False) + "\n"
        _files.write(self.path / name, text.encode())


class MetricsLog:
    """Appends to ``metrics.jsonl``; knows how long it was when a checkpoint was written.

    Args:
        path: The file.
        length: Bytes to keep: what a run wrote after its last checkpoint is written again.
    """

    def __init__(self, path: Path, length: int) -> None:
        if length > (path.stat().st_size if path.exists() else 0):
            raise UserError(f"{path} has been cut: it is shorter than the checkpoint says")
        try:
            self._file = path.open("ab")
            self._file.truncate(length)
            self._file.seek(length)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        self.path = path

    def write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write((json.dumps(finite(line), allow_nan=False) + "\n").encode())
            self._file.flush()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error

    def sync(self) -> int:
        """Makes sure that all lines are on the disk; how many bytes they are."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def finite(content: Any) -> Any:
    """The same, with null for what JSON has no number for.

    Example:
        >>> finite({"loss": float("nan"), "step": 3})
        {'loss': None, 'step': 3}
    """
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
