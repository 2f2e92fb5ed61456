"""The rooms of the house: imports go down the list, never up, never sideways."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = [
    ["__main__"],
    ["cli"],
    ["experiment", "report"],
    ["integrations", "robust"],
    ["__init__"],
    ["losses", "train"],
    ["curvature", "data", "landscape", "models", "optim"],
]
"""From the roof down; the single files that are not named here are the ground they all stand on."""
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
GROUND = len(FLOORS)


def imports() -> Iterator[tuple[str, str, str]]:
    """Every import of ours from another room: the file, its room, the other one."""
    source = ROOT / "src/crsam"
    for file in source.rglob("*.py"):
        path = file.relative_to(source)
        room = path.parts[0] if len(path.parts) > 1 else path.stem
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
                other = rest[0] if rest and _is_room(source / rest[0]) else "__init__"
                if first == "crsam" and other != room:
                    yield str(path), room, other


def _is_room(path: Path) -> bool:
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


def test_the_map_shows_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"^ {2}(\w+)/ {2}", text, re.MULTILINE)
    assert sorted(shown) == sorted(
        path.name
        for path in (ROOT / "src/crsam").iterdir()
        if path.is_dir() and path.name[0] != "_"
    )
