"""Which exercises have passed their check, kept from one session to the next.

A pass is kept as three fingerprints: of the code with all that it uses ("all"), of its own code ("own"), and of each
thing that it uses ("uses"), so that it can be said what has changed since.
"""

from __future__ import annotations

import html
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from distlab.course.checks import exercises, labs
from distlab.course.fingerprint import fingerprint, fingerprints_used, own_fingerprint
from distlab.course.places import progress_file, progress_folders
from distlab.course.shown import COLOURS, show

_KEPT = 20
_COLUMNS = 80
# What could be written nowhere is kept for as long as this process lives, and said once.
_unwritten: dict[str, list[dict]] = {}
_said: set[str] = set()


def _read() -> dict[str, list[dict]]:
    file = progress_file()
    record = _read_file(file) if file is not None else {}
    return record | {name: [*record.get(name, []), *passed] for name, passed in _unwritten.items()}


def _read_file(file: Path) -> dict[str, list[dict]]:
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    passes = {name: passed for name, passed in record.items() if isinstance(passed, list)}
    return {name: [_as_pass(each) for each in passed] for name, passed in passes.items()}


def _as_pass(entry) -> dict:
    """An entry of the file; once there were strings, of the whole alone."""
    return entry if isinstance(entry, dict) else {"all": entry}


def record_pass(name: str, obj) -> str:
    """Notes that the exercise ``name``, as ``obj`` now defines it, has passed.

    Returns "", or where that cannot be written as it should be, the first time, where it is kept instead.
    """
    record = _read()
    now = {"all": fingerprint(obj), "own": own_fingerprint(obj), "uses": fingerprints_used(obj)}
    record[name] = [*(known for known in record.get(name, []) if known.get("all") != now["all"]), now][-_KEPT:]
    file = progress_file()
    try:
        _write(file, record)
    except OSError:
        _unwritten[name] = record[name]
        return _once(_in_memory(progress_folders()))
    _unwritten.clear()
    best = progress_folders()[0]
    return "" if file.parent == best else _once(f"passed checks are kept in {file.parent}: {best} cannot be written")


def _in_memory(folders: list[Path]) -> str:
    tried = " and not to ".join(map(str, folders))
    return f"passed checks are kept until this kernel ends: they cannot be written to {tried}"


def _once(words: str) -> str:
    new = {words} - _said
    _said.update(new)
    return "".join(new)


def _write(file: Path | None, record: dict[str, list[str]]) -> None:
    if file is None:
        raise PermissionError("there is no place that can be written")
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=file.parent) as folder:  # gone too if this is interrupted
        draft = Path(folder) / file.name
        draft.write_text(json.dumps(record, indent=1, sort_keys=True))
        os.replace(draft, file)


def has_passed(name: str, obj) -> bool:
    """Whether the exercise ``name`` has passed as ``obj`` now defines it."""
    return fingerprint(obj) in (known.get("all") for known in _read().get(name, []))


def has_ever_passed(name: str) -> bool:
    """Whether the exercise ``name`` has passed, as somebody defined it once."""
    return bool(_read().get(name))


def since_when(names: list[str], namespace: Mapping[str, object]) -> str:
    """Why exercises that had passed must pass again, as a sentence ends: ", since `helper` has changed"; or ""."""
    changed = dict.fromkeys(each for name in names if name in namespace for each in _changed(name, namespace[name]))
    words = ", ".join(f"`{each}`" for each in changed)
    return f", since {words} {'has' if len(changed) == 1 else 'have'} changed" if changed else ""


def _changed(name: str, obj) -> list[str]:
    """What ``obj`` uses and has changed since it last passed with its own code as it is now; [] if nobody knows."""
    own, used = own_fingerprint(obj), fingerprints_used(obj)
    last = next((known for known in reversed(_read().get(name, [])) if known.get("own") == own), None)
    if last is None or has_passed(name, obj):
        return []
    return [other for other, found in used.items() if last["uses"].get(other) != found]


def progress() -> None:
    """Shows the course so far: ✓ passed, ○ to do; an exercise changed since it passed counts as to do."""
    course = [_OfLab(lab.LAB, {exercise: _mark(exercise.name) for exercise in lab.EXERCISES}) for lab in labs()]
    show("\n".join(lab.text() for lab in course), f"<table>{''.join(lab.row() for lab in course)}</table>")


class _OfLab:
    """How far the learner is in one lab: a mark for each exercise."""

    def __init__(self, name: str, marks: dict):
        self.name = name
        self.core = {exercise.name: mark for exercise, mark in marks.items() if not exercise.further}
        self.further = {exercise.name: mark for exercise, mark in marks.items() if exercise.further}
        self.passed = sum(mark == "✓" for mark in self.core.values())

    def text(self) -> str:
        """Lines of at most 80 columns, in which no name is broken."""
        lines = [f"{self.name}: {self.passed} of {len(self.core)}"]
        for head, marks in (("    ", self.core), ("    further: ", self.further)):
            words = "  ".join(f"{mark}\N{NO-BREAK SPACE}{name}" for name, mark in marks.items())
            lines += textwrap.wrap(words, _COLUMNS, initial_indent=head, subsequent_indent="    ") if marks else []
        return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")

    def row(self) -> str:
        """The same as a row of a table, with a bar."""
        share = self.passed / len(self.core) if self.core else 0.0
        bar = f'<progress value="{share:.2f}" title="{self.passed} of {len(self.core)}"></progress>'
        names = " &ensp; ".join(_name(name, mark) for name, mark in (self.core | self.further).items())
        cells = (html.escape(self.name), f"{bar} {self.passed} of {len(self.core)}", names)
        return (
            "<tr>" + "".join(f'<td style="text-align:left;vertical-align:top">{cell}</td>' for cell in cells) + "</tr>"
        )


def _name(name: str, mark: str) -> str:
    return f'<span style="white-space:nowrap"><b style="color:{COLOURS[mark]}">{mark}</b> {html.escape(name)}</span>'


def _mark(name: str) -> str:
    defined = getattr(sys.modules["__main__"], name, None)
    passed = has_passed(name, defined) if defined is not None else has_ever_passed(name)
    return "✓" if passed else "○"


def lab_of(name: str) -> str:
    """The lab in which an exercise stands."""
    return exercises()[name][0]
