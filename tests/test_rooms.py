"""The rooms of distlab: imports go one way, and few modules are long."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import distlab

ROOT = Path(distlab.__file__).parent
GROUND = {"events", "recording", "traffic", "data", "models"}
# What each room may import besides itself and the ground. `ranks` and `machine` do not know each other.
ALLOWED = {
    "ranks": set(),
    "machine": set(),
    "show": {"machine", "ranks"},
    "drawn": {"machine", "ranks", "show"},
    "course": {"machine", "ranks", "show", "drawn"},
    "pictures": {"machine", "ranks", "show", "drawn", "course", "demos"},
    "demos": {"machine", "ranks", "show", "drawn", "course"},
    "__init__": {"machine", "ranks", "show", "drawn", "course"},
    "__main__": {"machine", "ranks", "show", "drawn", "course", "demos", "pictures"},
}
# The same inside ranks, for its own rooms; what stands beside them is common ground.
INSIDE_RANKS = {
    "watching": set(),
    "shipping": set(),
    "verdicts": {"watching"},
    "processes": {"watching", "shipping", "verdicts"},
}
DRAWING = {"matplotlib", "ipywidgets"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The modules that a file imports, also inside functions; not those that only type checkers see."""
    tree = ast.parse(path.read_text())
    unseen = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {id(node) for block in unseen for node in ast.walk(block)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    room = room_of(path)
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("distlab.") and name.count(".")}
    known = {part for part in rooms if (ROOT / part).exists() or (ROOT / f"{part}.py").exists()}
    assert known <= ALLOWED.get(room, set()) | GROUND | {room}


@pytest.mark.parametrize("room", INSIDE_RANKS)
def test_imports_go_one_way_inside_ranks(room):
    names = {name for path in (ROOT / "ranks" / room).glob("*.py") for name in imported(path)}
    rooms = {name.split(".")[2] for name in names if name.startswith("distlab.ranks.")}
    assert rooms & INSIDE_RANKS.keys() <= INSIDE_RANKS[room] | {room}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_show_and_demos_draw(path):
    drawing = {name.split(".")[0] for name in imported(path)} & DRAWING
    assert not drawing or room_of(path) in ("show", "demos")


def test_every_room_that_stands_in_the_table_is_there():
    rooms = {room_of(path) for path in modules()}
    assert rooms == ALLOWED.keys() | GROUND
