"""Rows: a lane as a line of characters, a column for each equal part of its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import partial
from itertools import groupby

from distlab.show.lanes import Lane, times

COMPUTES, COMMUNICATES, WAITS, IS_GONE = "─~· "

# By column, what takes which share of it.
Columns = list[defaultdict[Hashable, float]]


def row(lane: Lane, begin: float, wall: float, num_columns: int) -> str:
    """One line: in each column what the rank does most of that time, from ``begin`` for ``wall`` seconds.

    A span is its label, or the label's first letter where it is too narrow, and COMPUTES to its end.
    """
    share_out = partial(_share_out, begin, wall, num_columns)
    computing = share_out((box.start, box.end, (box.label, box.number)) for box in lane.boxes)
    communicating = share_out((*when, COMMUNICATES) for when in times(lane.messages))
    waiting = share_out((*when, WAITS) for when in times(lane.waits))
    cells = [_most(*shares) for shares in zip(computing, communicating, waiting)]
    return "".join(_draw(cell, len(list(run))) for cell, run in groupby(cells))


def _share_out(
    begin: float, wall: float, num_columns: int, stretches: Iterable[tuple[float, float, Hashable]]
) -> Columns:
    columns: Columns = [defaultdict(float) for _ in range(num_columns)]
    for start, end, what in stretches:
        first, last = ((time - begin) / wall * num_columns for time in (start, end))
        for column in range(int(first), min(int(last) + 1, num_columns)):
            columns[column][what] += min(last, column + 1) - max(first, column)
    return columns


def _most(computing: dict, communicating: dict, waiting: dict) -> Hashable:
    """What most of a column is; communication that is hidden behind computing does not count."""
    busy = sum(computing.values())
    exposed = min(communicating[COMMUNICATES], 1 - busy)
    waits = min(waiting[WAITS], 1 - busy - exposed)
    shares = {COMPUTES: busy, COMMUNICATES: exposed, WAITS: waits, IS_GONE: 1 - busy - exposed - waits}
    most = max(shares, key=shares.get)
    return max(computing, key=computing.get) if most == COMPUTES and computing else most


def _draw(cell: Hashable, width: int) -> str:
    if not isinstance(cell, tuple):
        return cell * width
    label = cell[0] if len(cell[0]) <= width else cell[0][:1]
    return label + COMPUTES * (width - len(label))
