"""How long a lab is: words of prose, lines that are given, lines that the learner writes.

python -m tests.course.lengths        prints all labs
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from pathlib import Path
from typing import NamedTuple

import nbformat

from distlab.course.places import ROOT

_CALLS = {"check", "hint", "predict", "progress", "this_machine"}
_NO_PROSE = re.compile(r"^```.*?^```|^\|.*$|!\[[^\]]*\]\([^)]*\)|^- .*arXiv.*$", re.DOTALL | re.MULTILINE)


class Length(NamedTuple):
    """Of a lab: words outside code, tables and sources; lines of code; the median sentence; the widest line of code."""

    words: int
    given: int
    learners: int
    sentence: float
    widest: int


def length_of(path: Path) -> Length:
    """The length of a solution notebook."""
    cells = nbformat.read(path, as_version=4).cells
    prose = [_NO_PROSE.sub("", cell.source) for cell in cells if cell.cell_type == "markdown"]
    code = [_of_python(cell.source) for cell in cells if cell.cell_type == "code"]
    counted = [_lines(source) for source in code]
    sentences = [s.split() for text in prose for s in re.split(r"(?<=[.:?!])\s+|\n\n", text) if len(s.split()) > 2]
    return Length(
        sum(len(re.findall(r"[\w'’·²-]*\w", text)) for text in prose),
        sum(given for given, _ in counted),
        sum(learners for _, learners in counted),
        statistics.median(map(len, sentences)),
        max(len(line) for source in code for line in source.splitlines()),
    )


def _of_python(source: str) -> str:
    return "\n".join("" if line.startswith("%") else line for line in source.splitlines()) + "\n"


def _lines(source: str) -> tuple[int, int]:
    """Lines of code that are given, and inside solutions: without blank ones, comments, docstrings, imports, and calls
    that every lab has."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = {line for t in tokens if t.type not in skipped for line in range(t.start[0], t.end[0] + 1)}
    lines -= {line for first, last in _found(ast.parse(source)) for line in range(first, last + 1)}
    inside, is_inside = set(), False
    for number, line in enumerate(source.splitlines(), 1):
        is_inside = "# BEGIN SOLUTION" in line or is_inside and "# END SOLUTION" not in line
        inside |= {number} if is_inside else set()
    return len(lines - inside), len(lines & inside)


def _found(tree: ast.AST) -> list[tuple[int, int]]:
    found = []
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        is_call = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and getattr(node.value.func, "id", "") in _CALLS
        )
        if is_text or is_call or isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node.lineno, node.end_lineno))
    return found


if __name__ == "__main__":
    print(f"{'':26}" + "".join(f"{name:>10}" for name in Length._fields))
    for solution in sorted((ROOT / "solutions").glob("0*.ipynb")):
        print(f"{solution.stem:26}" + "".join(f"{value:10}" for value in length_of(solution)))
