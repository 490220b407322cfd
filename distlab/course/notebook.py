"""Reads a lab's notebook: its exercises and definitions; makes the blank lab from the solution."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import re
import shutil
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from distlab.course.places import DEMOS, ROOT

_REGION = re.compile(r"^(?P<indent>[ \t]*)# BEGIN SOLUTION\n(?P<body>.*?)^[ \t]*# END SOLUTION", re.M | re.S)
_RELEASED = (
    "distlab",
    "labs",
    "docs",
    "README.md",
    "LICENSE",
    "pyproject.toml",
    "constraints.txt",
    "environment.yml",
    "Makefile",
    "install_torch.py",
)
_NOT_RELEASED = ("__pycache__", ".ipynb_checkpoints", DEMOS.name)  # demos show the solutions' code
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Cell:
    """What matters of a notebook's cell: ``exercise`` is the name of the exercise that is solved in it, if one is."""

    id: str
    is_code: bool
    source: str
    tags: tuple[str, ...]
    exercise: str


@lru_cache(maxsize=32)
def _read(path: Path, changed_ns: int) -> tuple[Cell, ...]:
    """The cells of a file that was last changed at ``changed_ns``; every check reads several, again and again.

    Read as the JSON it is: to import nbformat takes as long as to import torch, and the learner would wait for it.
    """
    return tuple(map(_cell, json.loads(path.read_text(encoding="utf-8"))["cells"]))


def _cell(cell: dict) -> Cell:
    source, metadata = cell["source"], cell["metadata"]
    grading = metadata.get("nbgrader", {})
    return Cell(
        cell.get("id", ""),
        cell["cell_type"] == "code",
        source if isinstance(source, str) else "".join(source),
        tuple(metadata.get("tags", ())),
        grading["grade_id"] if grading.get("solution") else "",
    )


class Notebook:
    """One lab's notebook on disk, to read."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.cells = _read(self.path, self.path.stat().st_mtime_ns)

    @cached_property
    def exercises(self) -> dict[str, str]:
        """The source of each exercise's cell, by the exercise's name, in order."""
        return {cell.exercise: cell.source for cell in self.cells if cell.exercise}

    @cached_property
    def defining(self) -> list[Cell]:
        """The cells that later ones, and other labs, need: exercises, and what only defines things."""
        return [cell for cell in self.cells if cell.is_code and (cell.exercise or _only_defines(cell))]

    def solution(self, name: str) -> str:
        """The lines between the markers of one exercise, as they would stand in the learner's cell."""
        return "\n".join(match["body"].rstrip("\n") for match in _REGION.finditer(self.exercises[name]))

    def definitions(self, instead: dict[str, str] | None = None, forgiving: bool = False) -> dict[str, object]:
        """Runs the cells that define things and returns the names they make; ``instead`` replaces exercises' cells.

        When ``forgiving``, a cell that raises leaves its names undefined: a learner's may be half-written.
        """
        namespace: dict[str, object] = {"__name__": "__main__"}
        for cell in self.defining:
            name = cell.exercise or cell.id
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception if forgiving else ()):
                execute_source(
                    (instead or {}).get(name, cell.source),
                    f"{self.path.parent.name}/{self.path.name}, {name}",
                    namespace,
                )
        return namespace


def _only_defines(cell: Cell) -> bool:
    if "definitions" in cell.tags:
        return True
    try:
        statements = ast.parse(cell.source).body
    except SyntaxError:
        return False
    return bool(statements) and all(isinstance(statement, _DEFINING) for statement in statements)


def execute_source(source: str, filename: str, namespace: dict) -> None:
    """Runs a cell's text; errors in it show its lines, under ``filename``."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def blank(path: Path):
    """The learner's notebook of a solution: solutions replaced by a stub, outputs gone, everything else the same."""
    import nbformat

    node = nbformat.read(path, as_version=4)
    for cell in node.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.source = _REGION.sub(r"\g<indent>raise NotImplementedError", cell.source)
    return node


def write_labs(solutions: Path = ROOT / "solutions", labs: Path = ROOT / "labs") -> list[Path]:
    """Writes the blank lab of every solution; returns the files."""
    import nbformat

    labs.mkdir(exist_ok=True)
    written = []
    for path in sorted(solutions.glob("*.ipynb")):
        nbformat.write(blank(path), labs / path.name)
        written.append(labs / path.name)
    return written


def write_release(folder: Path) -> None:
    """Copies what a class gets: everything but the solutions, the tests and their traces."""
    for name in _RELEASED:
        source, target = ROOT / name, Path(folder) / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=_held_back)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _held_back(folder: str, names: list[str]) -> set[str]:
    """What of a folder a class does not get; of patches, which quote the solutions, only what says what they are."""
    quoting = [name for name in names if Path(folder).name == "patches" and name != "__init__.py"]
    return shutil.ignore_patterns(*_NOT_RELEASED)(folder, names) | set(quoting)


def notebooks_named(names: list[str]) -> list[Path]:
    """The solutions and demos whose names begin so ("02", "demos"), all of them without names.

    Raises ValueError for a name that none begins with.
    """
    paths = [*sorted((ROOT / "solutions").glob("*.ipynb")), DEMOS]
    unknown = [name for name in names if not any(path.name.startswith(name) for path in paths)]
    if unknown:
        known = ", ".join(path.stem for path in paths)
        raise ValueError(f"There is no notebook {' or '.join(unknown)}; there are {known}.")
    return [path for path in paths if not names or any(path.name.startswith(name) for name in names)]


def execute(path: Path) -> None:
    """Runs a notebook from top to bottom and stores its outputs, without times and without traces of this machine.

    Of a widget its picture and its words are stored, which show without a kernel; its view would need one.
    """
    import nbformat
    from nbclient import NotebookClient

    node = nbformat.read(path, as_version=4)
    options = {
        "timeout": 600,
        "kernel_name": "python3",
        "record_timing": False,
        "coalesce_streams": True,
        "store_widget_state": False,
    }
    NotebookClient(node, **options, resources={"metadata": {"path": str(path.parent)}}).execute()
    for output in (output for cell in node.cells for output in cell.get("outputs", ())):
        output.get("data", {}).pop(_WIDGET_VIEW, None)
    node.metadata.language_info = {"name": "python"}
    nbformat.write(node, path)
