"""Imports between the packages go down the list, never up, never sideways."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = [
    ["__main__"],
    ["lab.cli"],
    ["lab.experiment", "lab.report"],
    ["integrations", "lab.robustness"],
    ["lab.train"],
    ["lab.data", "lab.models"],
    ["lab"],
    ["__init__"],
    ["graph", "losses"],
    ["curvature", "landscape", "optim"],
]
"""From the roof down. Files that are not named here are the ground that all of them stand on."""
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
GROUND = len(FLOORS)
SOURCE = ROOT / "src/crsam"


def imports() -> Iterator[tuple[str, str, str]]:
    """Yields every import of ours from another room: the file, its room, the other one."""
    for file in SOURCE.rglob("*.py"):
        path = file.relative_to(SOURCE)
        room = _room_of(path.with_suffix("").parts)
        if room == "__init__":
            continue  # it loads every name at its first use
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} has a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                first, *rest = name.split(".")
                other = _room_of(rest)
                if first == "crsam" and other != room:
                    yield str(path), room, other


def _room_of(parts: Sequence[str]) -> str:
    """The room of a module, given as ``("lab", "train", "loop")``."""
    if parts[:1] and parts[0] == "lab":
        inside = parts[1:2] and _is_module(SOURCE / "lab" / parts[1]) and parts[1] != "__init__"
        return f"lab.{parts[1]}" if inside else "lab"
    return parts[0] if parts[:1] and _is_module(SOURCE / parts[0]) else "__init__"


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").exists()


def test_imports_go_down() -> None:
    found = list(imports())
    assert len(found) > 200
    wrong = [
        f"{file} imports {other}"
        for file, room, other in found
        if other in LEVEL and LEVEL[other] <= LEVEL.get(room, GROUND)
    ]
    assert wrong == []


def test_the_core_never_imports_the_laboratory() -> None:
    above = ("lab", "__main__")
    wrong = [
        f"{file} imports {other}"
        for file, room, other in imports()
        if other.split(".")[0] == "lab" and room.split(".")[0] not in above
    ]
    assert wrong == []


def test_the_map_shows_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"^ {2,4}(\w+)/ {2}", text, re.MULTILINE)
    folders = [*SOURCE.iterdir(), *(SOURCE / "lab").iterdir()]
    rooms = [path.name for path in folders if path.is_dir() and path.name[0] != "_"]
    assert sorted(shown) == sorted(rooms)
