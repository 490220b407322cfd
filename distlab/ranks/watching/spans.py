"""span(): a name for a stretch of a rank's work."""

from __future__ import annotations

import contextlib

from distlab.events import Span
from distlab.ranks.watching.log import Log
from distlab.ranks.watching.memory import note_held
from distlab.ranks.watching.uncompiled import uncompiled

_logs: list[Log] = []  # this rank's log; empty outside a watched rank


def open_spans(log: Log) -> None:
    """Has this process's spans written to ``log``."""
    _logs[:] = [log]


@contextlib.contextmanager
def span(name: str, index: int | None = None, flops: float | None = None):
    """Names what runs inside: ``with span("F", 3):`` is "F3" in the timeline, "forward of micro-batch 3", say.

    ``flops`` replaces what the operators inside count. Outside a watched rank it does nothing. Raises TypeError for a
    name that is not text or is empty, ValueError for negative flops.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a text that is not empty, not {name!r}")
    if flops is not None and flops < 0:
        raise ValueError(f"flops must not be negative, got {flops!r}")
    label = name if index is None else f"{name}{index}"
    logs = [log for log in _logs if _is_followed(log, label)]
    for log in logs:
        _begin(log, label, flops)
    try:
        yield
    finally:
        for log in logs:
            _end(log)


@uncompiled
def _begin(log: Log, label: str, flops: float | None) -> None:
    log.open_spans += 1
    _note(log, Span(label, flops, log.now(), log.place()))


@uncompiled
def _end(log: Log) -> None:
    _note(log, Span("", None, log.now(), 0))
    log.open_spans -= 1


@uncompiled
def _is_followed(log: Log, label: str) -> bool:
    """Whether it is the main thread that opens a span: those of several threads would not nest."""
    if not log.is_on_main_thread:
        log.note(f"the span {label!r} was opened by a thread that is not the rank's main one: it is not shown")
    return log.is_on_main_thread


def _note(log: Log, boundary: Span) -> None:
    """Writes where a span begins or ends, and, where compute is recorded too, what the rank holds there."""
    log.write(boundary)
    note_held(log)
