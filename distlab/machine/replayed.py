"""Replayed: what a replay wrote, read as segments and arrows where somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from distlab.machine.operation import Lane, Operation, Row, rows
from distlab.machine.path import critical_path
from distlab.machine.timeline import Arrow, Segment


@dataclass(frozen=True)
class Replayed:
    """``lanes`` are by rank, ``operations`` in the order in which they took their links."""

    lanes: Sequence[Lane]
    operations: Sequence[Operation]

    def segments(self, rank: int, kind: str) -> list[Segment]:
        """What a rank did of one kind."""
        if kind == "communication":
            return [_segment(rank, row, kind) for row in self._links[rank]]
        return [_segment(rank, row, kind) for row in rows(self.lanes[rank]) if (row[3] is None) == (kind == "compute")]

    def arrows(self) -> list[Arrow]:
        """Sends with their receives, in the order in which they took their links."""
        return [_arrow(operation) for operation in self.operations if operation.is_p2p]

    def critical_path(self, end: float) -> list[Segment]:
        """The chain that sets the end."""
        path = critical_path(self.lanes, end)
        return [_segment(rank, row, "compute" if row[3] is None else "communication") for rank, row in path]

    @cached_property
    def _links(self) -> list[list[Row]]:
        """By rank, what it has on its links."""
        links: list[list[Row]] = [[] for _ in self.lanes]
        for operation in self.operations:
            for rank, _, label, _ in operation.entries:
                links[rank].append((operation.start, operation.end, label, operation))
        return links


def _segment(rank: int, row: Row, kind: str) -> Segment:
    start, end, label, operation = row
    return Segment(rank, start, end, kind, label, operation.message(rank) if operation else None)


def _arrow(pair: Operation) -> Arrow:
    (source, message, *_), (target, *_) = pair.entries
    return Arrow(source, target, pair.start, pair.end, message)
