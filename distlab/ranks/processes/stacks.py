"""Reads where a rank stands from the stack that Python's faulthandler wrote for it."""

from __future__ import annotations

import re
from pathlib import Path

from distlab.ranks import cells

_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
PASSES_THROUGH = {"wrapper", "wait"}


def read_stack(path: str, sources: dict[str, cells.Source]) -> tuple[tuple[cells.Frame, ...], str]:
    """Returns the learner's frames, innermost last, and the torch.distributed operation that they wait in ("" if none).

    The frames are empty where no line of the learner's was running, or nothing has been written.
    """
    try:
        text = Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return (), ""
    steps = _last_thread(text)
    inner = [i for i, step in enumerate(steps) if cells.is_learners(step["file"], sources)]
    frames = [
        cells.frame(s["file"], int(s["line"]), s["function"], sources) for s in (steps[i] for i in reversed(inner))
    ]
    return tuple(frames), _operation(steps[: inner[0]] if inner else steps)


def _last_thread(text: str) -> list[dict[str, str]]:
    """The innermost-first steps of the thread written last, which is the main one."""
    threads: list[list[dict[str, str]]] = [[]]
    for line in text.splitlines():
        if "most recent call first" in line:
            threads.append([])
        elif match := _LINE.match(line):
            threads[-1].append(match.groupdict())
    return threads[-1]


def _operation(steps: list[dict[str, str]]) -> str:
    """The function of torch.distributed nearest to the learner's line."""
    names = [step["function"] for step in steps if "torch/distributed/" in step["file"].replace("\\", "/")]
    return next((name for name in reversed(names) if name not in PASSES_THROUGH), "")
