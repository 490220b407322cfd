"""Which exercises have passed their check, kept from one session to the next."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from distlab.course.checks import exercises, labs
from distlab.course.fingerprint import fingerprint
from distlab.course.places import progress_file, progress_folders

_KEPT = 20
# What could be written nowhere is kept for as long as this process lives, and said once.
_unwritten: dict[str, list[str]] = {}
_said: set[str] = set()


def _read() -> dict[str, list[str]]:
    file = progress_file()
    record = _read_file(file) if file is not None else {}
    return record | {name: [*record.get(name, []), *passed] for name, passed in _unwritten.items()}


def _read_file(file: Path) -> dict[str, list[str]]:
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: passed for name, passed in record.items() if isinstance(passed, list)}


def record_pass(name: str, obj) -> str:
    """Notes that the exercise ``name``, as ``obj`` now defines it, has passed.

    Returns "", or where that cannot be written as it should be, the first time, where it is kept instead.
    """
    record = _read()
    passed = [known for known in record.get(name, []) if known != fingerprint(obj)]
    record[name] = [*passed, fingerprint(obj)][-_KEPT:]
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
    return fingerprint(obj) in _read().get(name, [])


def progress() -> None:
    """Prints the course so far: ✓ passed, ○ to do; an exercise changed since it passed counts as to do."""
    for lab in labs():
        marks = {exercise: _mark(exercise.name) for exercise in lab.EXERCISES}
        core, further = [[exercise for exercise in marks if exercise.further == is_further] for is_further in (0, 1)]
        print(f"{lab.LAB}: {sum(marks[exercise] == '✓' for exercise in core)} of {len(core)}")
        for head, group in (("   ", core), ("   further: ", further)):
            if group:
                print(head + "  ".join(f"{marks[exercise]} {exercise.name}" for exercise in group))


def _mark(name: str) -> str:
    defined = getattr(sys.modules["__main__"], name, None)
    passed = has_passed(name, defined) if defined is not None else bool(_read().get(name))
    return "✓" if passed else "○"


def lab_of(name: str) -> str:
    """The lab in which an exercise stands."""
    return exercises()[name][0]
