"""%%needs: an experiment cell waits until the exercises that it uses have passed their checks."""

from __future__ import annotations

import sys

from distlab.course.checks import exercises
from distlab.course.progress import has_passed

_MAGIC = "%%needs"


def wait_for_needs(lines: list[str]) -> list[str]:
    """Turns a cell that begins with ``%%needs f g`` into one friendly line until f and g pass; an IPython input
    transformer.

    The cell's own lines keep their numbers, and its errors stay errors.
    """
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None or lines[first].split()[:1] != [_MAGIC]:
        return lines
    names = lines[first].split()[1:]
    message = _message(names)
    return [f"print({message!r})\n"] if message else [*lines[:first], "\n", *lines[first + 1 :]]


def _message(names: list[str]) -> str:
    unknown = [name for name in names if name not in exercises()]
    if unknown or not names:
        came = " ".join(unknown) or "none"
        return f"%%needs expects names of exercises, got {came}. Exercises: {', '.join(exercises())}"
    main = sys.modules["__main__"]
    waiting = [
        name
        for name in _with_what_they_use(names)
        if not hasattr(main, name) or not has_passed(name, getattr(main, name))
    ]
    checks = ", ".join(f"check({name})" for name in waiting)
    return f"○ This cell runs once {checks} show{'s' if len(waiting) == 1 else ''} ✓." if waiting else ""


def _with_what_they_use(names: list[str]) -> list[str]:
    """The exercises and the earlier ones that they call, each once."""
    used = [earlier for name in names for earlier in _with_what_they_use(list(exercises()[name][1].uses))]
    return list(dict.fromkeys([*used, *names]))


def install(shell) -> None:
    """Adds the transformer to an IPython shell, once."""
    transforms = shell.input_transformers_cleanup
    if wait_for_needs not in transforms:
        transforms.append(wait_for_needs)
