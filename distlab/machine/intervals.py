"""Arithmetic with stretches of time: lists of (start, end), in order and apart from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, without overlaps, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in all."""
    return sum(end - start for start, end in intervals)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Seconds that are in both of two lists, each in order and without overlaps."""
    seconds, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        seconds += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return seconds
