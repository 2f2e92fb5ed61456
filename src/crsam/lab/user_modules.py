"""Files of a user's own, with methods and models in them: how they are run, and which they were."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from crsam.errors import UserError

_files: dict[str, str] = {}


def imported() -> dict[str, str]:
    """By their hashes, the files that were run, and those beside them that they imported."""
    return dict(_files)


def changed(then: Mapping[str, str]) -> list[str]:
    """Of the files that were imported then, those that are others now."""
    there, here = _by_name(then), _by_name(_files)
    return [name for name in there if name in here and not there[name] & here[name]]


def _by_name(files: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for content, name in files.items():
        found.setdefault(name, set()).add(content)
    return found


def import_module(name: str) -> None:
    """A module of the path or the current folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # not first: it may hold a random.py
    before = set(sys.modules)
    module = importlib.import_module(name)
    if module.__file__ is not None:
        _note(Path(module.__file__), set(sys.modules) - before)


def import_file(path: Path) -> None:
    """This very file, whatever other modules of its name there are; once.

    What it imports is looked for beside it first, but for the standard library's names.

    Raises:
        UserError: If another module of a neighbour's name is loaded already.
    """
    path = path.resolve()
    if any(getattr(module, "__file__", None) == str(path) for module in [*sys.modules.values()]):
        return
    _check_neighbours(path)
    name = path.stem
    if name in sys.stdlib_module_names or name in sys.modules:
        name = f"{name} of {path.parent}"
    before = set(sys.modules)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    sys.path.append(str(path.parent))  # for what is imported later
    try:
        with _first(path.parent):
            SourceFileLoader(name, str(path)).exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _note(path, set(sys.modules) - before)


def _note(path: Path, new: set[str]) -> None:
    """Of what came in with a file, what is installed below its folder is no part."""
    others = {"crsam", *sys.stdlib_module_names}
    own = (sys.modules[name] for name in new if name.partition(".")[0] not in others)
    files = {Path(file) for module in own if (file := getattr(module, "__file__", None))}
    for file in {path, *(each for each in files if path.parent in each.parents)}:
        named = file.relative_to(path.parent)
        if file.is_file() and not {"site-packages", "dist-packages"} & {*named.parts}:
            _files[hashlib.sha256(file.read_bytes()).hexdigest()[:16]] = named.as_posix()


class _Beside(MetaPathFinder):
    """Finds modules in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(name, [str(self.folder)])
        return spec if spec is not None and spec.origin is not None else None


@contextmanager
def _first(folder: Path) -> Iterator[None]:
    finder = _Beside(folder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _check_neighbours(path: Path) -> None:
    """Of two files that each have a ``utils.py`` beside them, the second would get the first's."""
    beside = _Beside(path.parent)
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in {each.partition(".")[0] for each in names} & sys.modules.keys():
            spec, loaded = beside.find_spec(name), getattr(sys.modules[name], "__file__", None)
            if spec is None or spec.origin is None or loaded is None:
                continue
            if Path(spec.origin).resolve() not in (path, Path(loaded).resolve()):
                raise UserError(
                    f"there is a {name} beside it, but {loaded} has been imported by that name: "
                    "call one of them something else"
                )
