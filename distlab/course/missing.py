"""Names that a learner's code reads and the kernel lacks, since the cell that makes them has not been run.

That is how a day begins: the notebook shows everything, and the new kernel knows nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
import types

from distlab.course.fingerprint import plain, read_globals
from distlab.course.notebook import Notebook
from distlab.course.places import lab_file

_NEEDS = re.compile(r"\A\s*%%needs.*")
_ALONE = "is not defined in this kernel: run its cell"


def missing_names(obj, lab: str) -> list[str]:
    """The names that ``obj``, or what it calls, reads in vain, and that a cell of its lab makes; in the lab's order."""
    wanted: set[str] = set()
    _look(obj, wanted, set())
    return [name for name in _made_by(lab) if name in wanted] if wanted else []


def where_to_run(names: list[str]) -> str:
    """What to do about them, as the end of a sentence."""
    them = ", ".join(f"`{name}`" for name in names)
    rest = "are not defined in this kernel: run their cells" if len(names) > 1 else _ALONE
    return f"{them} {rest} (Run > Run All Above Selected Cell), then this one again"


def is_made_by(name: object, lab: str) -> bool:
    """Whether a cell of a lab makes this name."""
    return isinstance(name, str) and name in _made_by(lab)


def _look(obj, wanted: set[str], seen: set[int]) -> None:
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, type):
        for member in vars(obj).values():
            _look(plain(member), wanted, seen)
    elif isinstance(obj, types.FunctionType):
        for name in read_globals(obj.__code__):
            if name in obj.__globals__:
                value = obj.__globals__[name]
                if getattr(value, "__module__", None) == "__main__":
                    _look(value, wanted, seen)
            elif not hasattr(builtins, name):
                wanted.add(name)


def _made_by(lab: str) -> list[str]:
    """The names that the cells of a lab make at their top level, in order."""
    path = lab_file("labs", lab) or lab_file("solutions", lab)
    cells = Notebook(path).cells if path else ()
    return list(dict.fromkeys(name for cell in cells if cell.is_code for name in _bound(cell.source)))


def _bound(source: str) -> list[str]:
    try:
        statements = ast.parse(_NEEDS.sub("", source)).body
    except SyntaxError:  # another magic, or something half-written
        return []
    return [name for statement in statements for name in _names_of(statement)]


def _names_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [node.id for node in stored]
