"""Recipes as TOML: those shipped, files with a ``base``, overrides of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from crsam.errors import UserError, unknown
from crsam.lab.experiment.layers import Layers
from crsam.lab.experiment.literal import bare, literal
from crsam.lab.experiment.recipe import CHOICES, Recipe, as_tables

STUDIES = "studies/"
"""Where among the shipped recipes those with a ``[study]`` table are."""


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe out of a file or by the name of a shipped one.

    Args:
        source: Such as ``"demo"``, ``"cifar10/resnet18"`` or ``"mine.toml"``. A file's
            ``base = "…"`` names another, relative to it, or a shipped one; it is read first.
        overrides: Such as ``"train.epochs=10"`` or ``"model=resnet18"``, with the value in TOML's
            grammar; a bare word is text.

    Raises:
        UserError: If a file cannot be read, or something in it is not known or not allowed.

    Example:
        >>> load_recipe("demo", ["method=sam", "train.epochs=10"]).train.epochs
        10
    """
    layers = read_layers(source, overrides)
    if "study" in layers.table:
        raise UserError(f"{source} has a [study] table: crsam study {source} runs it")
    return layers.recipe()


def read_layers(source: str | Path, overrides: Sequence[str] = (), also: str = "") -> Layers:
    """All that a file, its bases and the overrides say, not yet checked.

    Args:
        source: As of `load_recipe`.
        overrides: As of `load_recipe`.
        also: A folder of the shipped files in which a name may be, too.
    """
    layers = Layers()
    for file in reversed(_chain(_find(source, also))):
        layers.add({k: v for k, v in file.table.items() if k != "base"}, file.label)
    layers.fill()
    layers.add(_overriding(overrides))
    return layers


def recipes() -> list[str]:
    """The names of the recipes that come with the package.

    Files called ``base.toml`` are there for others to build on, and not listed.

    Example:
        >>> "cifar10/resnet18" in recipes()
        True
    """
    return [
        name
        for name in _shipped()
        if name.rpartition("/")[2] != "base" and not name.startswith(STUDIES)
    ]


def studies() -> list[str]:
    """The names of the studies that come with the package.

    Example:
        >>> "digits" in studies()
        True
    """
    return [name.removeprefix(STUDIES) for name in _shipped() if name.startswith(STUDIES)]


def to_toml(recipe: Recipe) -> str:
    """The whole recipe, resolved: `load_recipe` makes an equal one of it.

    Example:
        >>> to_toml(Recipe()).splitlines()[:5]
        ['seed = 0', 'method = "crsam"', '', '[data]', 'name = "digits"']
    """
    tables = as_tables(recipe)
    methods = tables.pop("methods")
    tables |= {f"methods.{bare(name)}": options for name, options in methods.items()}
    lines: list[str] = []
    for key, value in tables.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *(f"{bare(k)} = {literal(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key} = {literal(value)}")
    return "\n".join(lines) + "\n"


class _File(NamedTuple):
    label: str
    """As the user would call it."""
    path: Traversable
    table: dict[str, Any]


def _chain(first: _File) -> list[_File]:
    """The file, its base, the base of that, and so on."""
    chain = [first]
    while "base" in chain[-1].table:
        last = chain[-1]
        file = _base(last)
        chain.append(file)
        if any(_same(file, other) for other in chain[:-1]):
            labels = " → ".join(link.label for link in chain)
            raise UserError(f"the bases of these recipes go round in a circle: {labels}")
    return chain


def _same(a: _File, b: _File) -> bool:
    if isinstance(a.path, Path) and isinstance(b.path, Path):
        return a.path.resolve() == b.path.resolve()
    return a.path == b.path


def _base(file: _File) -> _File:
    name = file.table["base"]
    if not isinstance(name, str):
        raise UserError(f"{file.label}: base must be text, got {name!r}")
    if not name.endswith(".toml"):
        if name not in _shipped():
            raise UserError(f"{file.label}: base: {unknown('recipe', name, _shipped())}")
        return _read_shipped(name)
    if not isinstance(file.path, Path):
        raise UserError(f"{file.label}: base must be the name of a shipped recipe, got {name!r}")
    path = file.path.parent / Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"{file.label}: its base {path} does not exist")
    return _read(str(path), path)


def _find(source: str | Path, also: str = "") -> _File:
    shipped = _shipped()
    if isinstance(source, str):
        for name in (also + source, source):
            if name in shipped:
                return _read_shipped(name)
    path = Path(source).expanduser()
    if path.is_file():
        return _read(str(source), path)
    if path.suffix == ".toml" or isinstance(source, Path):
        name = path.with_suffix("").as_posix()
        hint = f": did you mean the shipped recipe {name!r}?" if name in shipped else ""
        raise UserError(f"there is no file {str(source)!r}{hint}")
    kind, names = ("study", studies()) if also == STUDIES else ("recipe", recipes())
    said = str(unknown(kind, source, names))
    more = " Or" if said.endswith("?") else ", or"
    raise UserError(f"{said}{more} give a path to a .toml file")


def _shipped() -> dict[str, Traversable]:
    return dict(_toml_files(files("crsam.lab") / "recipes", ""))


def _toml_files(folder: Traversable, above: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: (entry.is_dir(), entry.name)):
        if entry.is_dir():
            yield from _toml_files(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield above + entry.name.removesuffix(".toml"), entry


def _read_shipped(name: str) -> _File:
    return _read(f"the shipped recipe {name}", _shipped()[name])


def _read(label: str, path: Traversable) -> _File:
    try:
        return _File(label, path, tomllib.loads(path.read_bytes().decode()))
    except OSError as error:
        raise UserError(f"{label}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8, no TOML, or a number of thousands of digits
        raise UserError(f"{label}: not valid TOML: {error}") from error


def _overriding(overrides: Sequence[str]) -> dict[str, Any]:
    """All overrides as one table: a changed name keeps the options given beside it."""
    tables: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        *above, last = (name.strip() for name in key.split("."))
        if not equals or not last or not all(above) or not value.strip():
            raise UserError(f"an override is key=value, such as train.epochs=10, got {text!r}")
        if last == "base" and not above:
            raise UserError(f"a base is read before the overrides and cannot be one, got {text!r}")
        read = _value(value.strip(), text)
        if last in CHOICES and not above and isinstance(read, str):
            above, last = [last], "name"
        table = tables
        for name in above:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise UserError(f"{name} is a table: {name}={table} cannot go with {text!r}")
        if isinstance(table.get(last), dict):
            raise UserError(
                f"{last} is a table: {text!r} cannot go with {last}.{next(iter(table[last]))}=…"
            )
        table[last] = read
    return tables


def _value(value: str, text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {value}")
        if list(read) == ["value"]:
            return read["value"]
    except ValueError as error:
        if value[0] in "\"'[{":
            hint = "; in quotes, if there are spaces in it" if value[-1] in ",[{" else ""
            raise UserError(f"{text!r} is no key=value of TOML: {error}{hint}") from error
    return value
