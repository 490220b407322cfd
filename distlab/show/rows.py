"""Rows: a rank's time as a line of characters, a column for each equal part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import groupby

from distlab.machine import intervals
from distlab.show.scene import Scene

COMPUTES, COMMUNICATES, WAITS, IS_GONE = "─~· "

# By column, what takes which share of it.
Columns = list[defaultdict[Hashable, float]]


def row(scene: Scene, rank: int, num_columns: int) -> str:
    """One line: in each column what the rank does most of that time.

    A span is its label, or the label's first letter where it is too narrow, and COMPUTES to its end.
    """
    computing = _share_out(scene, ((box.start, box.end, box[2:]) for box in scene.boxes(rank)), num_columns)
    communicating = _share_out(scene, ((*times, COMMUNICATES) for times in scene.communicating(rank)), num_columns)
    waits = intervals.union((s.start, s.end) for s in scene.segments[rank] if s.kind == "wait")
    waiting = _share_out(scene, ((*times, WAITS) for times in waits), num_columns)
    cells = [_most(*shares) for shares in zip(computing, communicating, waiting)]
    return "".join(_draw(cell, len(list(run))) for cell, run in groupby(cells))


def _share_out(scene: Scene, stretches: Iterable[tuple[float, float, Hashable]], num_columns: int) -> Columns:
    columns: Columns = [defaultdict(float) for _ in range(num_columns)]
    for start, end, what in stretches:
        first, last = ((time - scene.begin) / scene.wall * num_columns for time in (start, end))
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
