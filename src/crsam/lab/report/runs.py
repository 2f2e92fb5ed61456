"""Reads run folders as they are: whole, half-written or broken, never with an exception.

`crsam.lab.experiment.folder` says what a run writes. What cannot be read is left out and listed in
`Run.problems`, so that a report shows it instead of ending.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from crsam._names import slug
from crsam.errors import UserError
from crsam.lab._same import Origin
from crsam.lab.report.landscapes import Landscape, read_landscape

FILES = ("recipe.toml", "metrics.jsonl", "result.json", "environment.json", "checkpoint.pt",
         "checkpoint.previous.pt")  # fmt: skip
"""A folder that holds one of these is a run."""
LARGEST = 1 << 30
"""Most bytes of a file that is read."""
DEEPEST = 8
"""Folders below folders that are looked into."""

State = Literal["done", "diverged", "unfinished", "broken"]


@dataclass(frozen=True, eq=False)
class Run:
    """What can be read of one run folder."""

    path: Path
    name: str
    """The folder, as short as it can be told from the others."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The tables of ``recipe.toml``; empty if it cannot be read."""
    recipe_text: str = ""
    metrics: tuple[dict[str, Any], ...] = ()
    """The lines of ``metrics.jsonl`` that are whole."""
    result: dict[str, Any] = field(default_factory=dict)
    """``result.json``; empty until the run has ended."""
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    """``data.json``: what the run remembers of its images."""
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """``measures-SPLIT.json``, by split."""
    robustness: dict[str, Any] = field(default_factory=dict)
    """``robustness.json``: by set of images."""
    landscape: Landscape | None = None
    contestant: str = ""
    """What a study calls it; empty if it is of none."""
    written: float | None = None
    """When something was last written here, in seconds since 1970."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each."""

    @property
    def state(self) -> State:
        """How far the run has come; broken if neither a recipe nor a number is there."""
        if self.result:
            return "done" if self.result.get("diverged_at") is None else "diverged"
        return "unfinished" if self.recipe or self.metrics else "broken"

    @property
    def origin(self) -> Origin:
        """Where its images come from."""
        table = self.recipe.get("data")
        given = table if isinstance(table, dict) else {}
        return Origin(given.get("name"), given.get("root"), self.data.get("fingerprint"))

    @property
    def method(self) -> str:
        """By its name; empty if nothing in the folder says it."""
        found = self.recipe.get("method", self.result.get("method"))
        return found if isinstance(found, str) else ""

    @property
    def seed(self) -> int | None:
        """None if nothing in the folder says it."""
        found = self.recipe.get("seed", self.result.get("seed"))
        return found if isinstance(found, int) and not isinstance(found, bool) else None


def tested(runs: Sequence[Run]) -> list[Run]:
    """Without those that were only to choose by, unless there are no others."""
    tables = [run.recipe.get("log") for run in runs]
    only_chose = [isinstance(table, dict) and table.get("test") is False for table in tables]
    return [run for run, chose in zip(runs, only_chose) if not chose] or list(runs)


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """All runs in these folders, each a run, a comparison, or a folder of such.

    Args:
        paths: The folders.

    Raises:
        UserError: If one of them does not exist, or none holds a run.

    Example:
        >>> read_runs(["nowhere"])
        Traceback (most recent call last):
        crsam.errors.UserError: there is no folder nowhere
    """
    for path in paths:
        if not Path(path).is_dir():
            raise UserError(f"there is no folder {path}")
    folders = [folder for path in paths for folder in run_folders(Path(path))]
    found = list({folder.resolve(): folder for folder in folders}.values())
    if not any(_is_run(folder) for folder in found):
        raise UserError(
            f"no run in {', '.join(map(str, paths))}: no folder there has a recipe.toml"
        )
    return [read_run(folder, name) for folder, name in zip(found, short_names(found))]


def run_folders(path: Path, within: Path | None = None) -> Iterator[Path]:
    """The run folders at or below a path, sorted; empty folders too, where a run should be.

    That is: at the path itself, beside a run, and where a process has begun (it leaves a lock).

    Args:
        path: Where to look.
        within: Leave out what lies outside this folder once links are followed.
    """
    seen: set[Path] = set()

    def look(folder: Path, depth: int, expected: bool) -> Iterator[Path]:
        real = folder.resolve()
        if real in seen or not _inside(real, within):
            return
        seen.add(real)
        try:
            entries = sorted(folder.iterdir(), key=_natural)
        except OSError:
            yield folder  # reading it will say why
            return
        names = [entry.name for entry in entries]
        if _is_run(folder) or names == [".lock"] or (expected and not names):
            yield folder
        elif depth < DEEPEST:
            below = [e for e in entries if not e.name.startswith(".") and _is_folder(e)]
            beside_runs = any(map(_is_run, below))
            for entry in below:
                yield from look(entry, depth + 1, beside_runs)

    yield from look(path, 0, True)


def read_run(folder: Path, name: str | None = None, within: Path | None = None) -> Run:
    """One run folder, whatever state it is in.

    Args:
        folder: Of the run.
        name: See `Run`.
        within: Do not read files that lie outside this folder once links are followed.
    """
    problems: list[str] = []

    def read(file: str, parse: Callable[[bytes], Any], empty: Any) -> Any:
        path = folder / file
        try:
            if not path.is_file():
                return empty
            if not _inside(path.resolve(), within):
                problems.append(f"{file} is a link out of the folder: not read")
                return empty
            if path.stat().st_size > LARGEST:
                problems.append(f"{file} has more than {LARGEST >> 30} GiB: not read")
                return empty
            return parse(path.read_bytes())
        except MemoryError:
            problems.append(f"{file} needs more memory than there is")
        except OSError as error:
            problems.append(f"{file} cannot be read: {error.strerror or error}")
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            problems.append(f"{file} is not whole: {reason}")
        return empty

    text = read("recipe.toml", lambda raw: raw.decode(), "")
    lines, torn = read("metrics.jsonl", metrics_lines, ((), ()))
    problems += [f"metrics.jsonl: {reason}" for reason in torn]
    recipe = read("recipe.toml", lambda raw: tomllib.loads(raw.decode()), {}) if text else {}
    result, environment = read("result.json", _table, {}), read("environment.json", _table, {})
    data = read("data.json", _table, {})
    measures = {
        file.stem.removeprefix("measures-"): found
        for file in _matching(folder, "measures-*.json")
        if (found := read(file.name, _table, {}))
    }
    robustness = read("robustness.json", _table, {})
    landscape = read("landscape.npz", read_landscape, None)
    if not _is_run(folder):
        problems.append("an empty folder: no recipe.toml")
    elif not text and not any(said.startswith("recipe.toml") for said in problems):
        problems.append("recipe.toml is missing")
    return Run(
        path=folder,
        name=name or folder.name,
        recipe=recipe,
        recipe_text=text,
        metrics=lines,
        result=result,
        environment=environment,
        data=data,
        measures=measures,
        robustness=robustness,
        landscape=landscape,
        contestant=_contestant(folder, within),
        written=_last_written(folder),
        problems=tuple(problems),
    )


def _contestant(folder: Path, within: Path | None) -> str:
    """By the summary in the study's folder, in which this one is ``STAGE/CONTESTANT/…/seedN``."""
    for place in list(folder.resolve().parents)[2:4]:
        file = place / "study.json"
        if file.is_file() and _inside(file.resolve(), within):
            stage, own, *_ = folder.resolve().relative_to(place).parts
            names = _contestants(file, file.stat().st_mtime_ns)
            name = next((name for name in names if slug(name) == own), "")
            return f"{name}, equal time" if name and stage == "equal-time" else name
    return ""


@lru_cache(maxsize=64)
def _contestants(file: Path, written: int) -> frozenset[str]:
    try:
        runs = json.loads(file.read_bytes())["runs"]
        return frozenset(str(run["contestant"]) for run in runs)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return frozenset()


def metrics_lines(raw: bytes) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    r"""The whole lines of ``metrics.jsonl``, and what is wrong with the others.

    Example:
        >>> metrics_lines(b'{"step": 1}\n{"ste')
        (({'step': 1},), ('line 2 is cut off',))
        >>> metrics_lines(b'{"step": 1}\nnonsense\n{"step": 2}\n')
        (({'step': 1}, {'step': 2}), ('1 line is not JSON, the first is line 2',))
    """
    lines: list[dict[str, Any]] = []
    bad: list[int] = []
    problems: list[str] = []
    rows = raw.decode(errors="replace").split("\n")
    for number, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        try:
            lines.append(_table(row))
        except (ValueError, RecursionError):
            if number == len(rows):  # no newline after it: its writer is not done, or was killed
                problems.append(f"line {number} is cut off")
            else:
                bad.append(number)
    if bad:
        what = "1 line is" if len(bad) == 1 else f"{len(bad)} lines are"
        problems.append(f"{what} not JSON, the first is line {bad[0]}")
    return tuple(lines), tuple(problems)


def short_names(folders: Sequence[Path]) -> list[str]:
    """The folders without what all of them have in common.

    Example:
        >>> short_names([Path("runs/demo/sgd/seed0"), Path("runs/demo/sam/seed0")])
        ['sgd/seed0', 'sam/seed0']
        >>> short_names([Path("runs/demo/sgd/seed0")])
        ['seed0']
    """
    parts = [folder.resolve().parts for folder in folders]
    common = 0
    while parts and all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    return ["/".join(p[common:]) for p in parts]


def _is_run(folder: Path) -> bool:
    try:
        return any((folder / file).is_file() for file in FILES)
    except OSError:  # no right to look
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _inside(path: Path, within: Path | None) -> bool:
    return within is None or path.is_relative_to(within)


def _table(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"holds a {type(found).__name__}, not a table")
    return found


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _last_written(folder: Path) -> float | None:
    files = [folder / file for file in FILES]
    try:
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
    except OSError:  # gone in between
        return None


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """So that seed10 comes after seed9."""
    words = "".join(c if c.isdigit() else f"\0{c}\0" for c in path.name).split("\0")
    return [(not w.isdigit(), int(w) if w.isdigit() and w.isascii() else 0, w) for w in words if w]
