"""%%needs: an experiment cell waits until the exercises that it uses have passed their checks."""

from __future__ import annotations

import sys

from distlab.course.checks import exercises
from distlab.course.missing import where_to_run
from distlab.course.places import lab_file
from distlab.course.progress import has_ever_passed, has_passed, since_when

_MAGIC = "%%needs"


def wait_for_needs(lines: list[str]) -> list[str]:
    """Turns a cell that begins with ``%%needs f g`` into one friendly line until f and g pass; an IPython input
    transformer.

    ``start_here.my_rows`` is what ``from_lab("start_here")`` gives: it waits only where the learner's has not passed
    and this copy of the course has no solutions. The cell's own lines keep their numbers, its errors stay errors.
    """
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None or lines[first].split()[:1] != [_MAGIC]:
        return lines
    names = lines[first].split()[1:]
    message = _message(names)
    if message:
        return [f'__import__("distlab.course.shown", fromlist=["show"]).show({message!r})\n']  # it makes no name
    return [*lines[:first], "\n", *lines[first + 1 :]]


def _message(names: list[str]) -> str:
    unknown = [name for name in names if name.rpartition(".")[2] not in exercises()]
    if unknown or not names:
        came = " ".join(unknown) or "none"
        return f"%%needs expects names of exercises, got {came}. Exercises: {', '.join(exercises())}"
    here = [name for name in names if "." not in name]
    return _of_earlier([name for name in names if "." in name]) or _of_this_lab(_with_what_they_use(here))


def _of_earlier(names: list[str]) -> str:
    """What is said of earlier labs' exercises that from_lab() could not give; "" if it can."""
    lacking = [name.partition(".")[::2] for name in names]
    lacking = [(lab, name) for lab, name in lacking if not lab_file("solutions", lab) and not has_ever_passed(name)]
    checks = ", ".join(f"check({name}) of lab {lab}" for lab, name in lacking)
    return f"○ This cell runs once {checks} {'shows' if len(lacking) == 1 else 'show'} ✓." if lacking else ""


def _of_this_lab(names: list[str]) -> str:
    """What is said of exercises that have not passed as they are defined in this kernel; "" if all have."""
    main = sys.modules["__main__"]
    waiting = [name for name in names if not hasattr(main, name) or not has_passed(name, getattr(main, name))]
    if not waiting:
        return ""
    undefined = [name for name in waiting if not hasattr(main, name) and has_ever_passed(name)]
    if undefined == waiting:
        return f"○ {where_to_run(undefined)}."
    checks, show = ", ".join(f"check({name})" for name in waiting), "shows" if len(waiting) == 1 else "show"
    return f"○ This cell runs once {checks} {show} ✓{since_when(waiting, vars(main))}."


def _with_what_they_use(names: list[str]) -> list[str]:
    """The exercises and the earlier ones that they call, each once, in the course's order."""
    used = [earlier for name in names for earlier in _with_what_they_use(list(exercises()[name][1].uses))]
    return [name for name in exercises() if name in {*used, *names}]


def install(shell) -> None:
    """Adds the transformer to an IPython shell, once."""
    transforms = shell.input_transformers_cleanup
    if wait_for_needs not in transforms:
        transforms.append(wait_for_needs)
