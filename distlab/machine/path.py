"""The critical path: what, one after the other, made a timeline as long as it is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from distlab.machine.operation import Lane, Operation, Row


def critical_path(lanes: Sequence[Lane], end: float) -> list[tuple[int, Row]]:
    """Ranks and rows from 0 to ``end``, each row beginning where the one before ends.

    A row with an operation is its time on the links. From the end backwards: a rank that computed had been at it since
    the row's start; one that waited did so for an operation, which had waited for the one before it on its link, and
    that for the last rank to issue it. Of ranks that end together, the lowest is followed.
    """
    ends = [lane[1::4] for lane in lanes]
    rank = next((rank for rank, ends_of_rank in enumerate(ends) if _has(ends_of_rank, end)), None)
    path: list[tuple[int, Row]] = []
    time = end
    while rank is not None and time > 0:
        number = bisect_left(ends[rank], time)
        start, _, label, operation = lanes[rank][4 * number : 4 * number + 4]
        if operation is None:
            path.append((rank, (start, time, label, None)))
            time = start
        else:
            links, first = _travel(rank, label, operation)
            path += links
            rank, time = first.last, first.start
    return [(rank, row) for rank, row in reversed(path) if row[1] > row[0]]


def _travel(rank: int, label: str, operation: Operation) -> tuple[list[tuple[int, Row]], Operation]:
    """The operation that a rank waited for, and those before it on the links, backwards; and the first of them."""
    path: list[tuple[int, Row]] = [(rank, (operation.start, operation.end, label, operation))]
    while operation.after is not None:
        operation = operation.after
        sender, _, label, _ = operation.entries[0]
        path.append((sender, (operation.start, operation.end, label, operation)))
    return path, operation


def _has(ends: Sequence[float], time: float) -> bool:
    number = bisect_left(ends, time)
    return number < len(ends) and ends[number] == time
