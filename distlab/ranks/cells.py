"""Where a learner's code stands: notebook cells by the name that the notebook shows."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib", "stdlib", "platstdlib"))
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = (*_INSTALLED, _OWN)


@dataclass(frozen=True)
class Source:
    """The text of one file or cell, as it was when a run began."""

    name: str
    text: str


@dataclass(frozen=True)
class Frame:
    """One line of a traceback: ``place`` reads "cell In[3], line 2"."""

    place: str
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.place}, in {self.function}:  {self.code}" if self.code else f"{self.place}, in {self.function}"


def display_name(filename: str) -> str:
    """Names a code object's file as the learner knows it: "cell In[3]", or the path from here."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    label = shell.compile.format_code_name(filename) if shell else None
    if label:
        return f"cell {label[1]}"
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def snapshot(filenames) -> dict[str, Source]:
    """Takes the text of each file now, so that a report shows what ran and not what was typed since."""
    return {name: Source(display_name(name), "".join(linecache.getlines(name))) for name in sorted(filenames)}


def install(sources: dict[str, Source]) -> None:
    """Lets this process's tracebacks show the lines of ``sources``, which exist in no file here."""
    for filename, source in sources.items():
        if not os.path.exists(filename):
            lines = source.text.splitlines(keepends=True)
            linecache.cache[filename] = (len(source.text), None, lines, filename)


def is_learners(filename: str, sources: dict[str, Source]) -> bool:
    """Whether a file is the learner's own: shipped from the notebook, or outside every library."""
    return filename in sources or not (filename.startswith(("<", *_LIBRARIES)))


def is_own(filename: str) -> bool:
    """Whether a file is one of distlab's."""
    return filename.startswith(_OWN)


def library_frame(filename: str, line: int, function: str) -> Frame:
    """Describes one place in a library, by the file's name inside it; a bare ``raise`` comes with its condition."""
    before, code = (linecache.getline(filename, number).strip() for number in (line - 1, line))
    folder = next((folder for folder in _INSTALLED if filename.startswith(folder)), "")
    name = filename.removeprefix(folder).lstrip(os.sep) if folder else filename
    condition = f"{before} " if code.startswith("raise ") and re.match(r"(if|elif) .*:$", before) else ""
    return Frame(f"{name}, line {line}", function, condition + code)


def frame(filename: str, line: int, function: str, sources: dict[str, Source]) -> Frame:
    """Describes one place in the learner's words."""
    source = sources.get(filename)
    lines = source.text.splitlines() if source else [text.rstrip("\n") for text in linecache.getlines(filename)]
    code = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return Frame(f"{source.name if source else display_name(filename)}, line {line}", function, code)


def rename(text: str, sources: dict[str, Source]) -> str:
    """Replaces the hidden file names of cells in a text by the names that the notebook shows."""
    for filename, source in sources.items():
        text = text.replace(filename, source.name)
    return text
