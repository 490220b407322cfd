"""Timeline: what each rank does when, on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from distlab.events import Message
from distlab.machine import intervals
from distlab.machine.hardware import Machine
from distlab.machine.operation import Lane, Operation, Row, rows
from distlab.machine.path import critical_path
from distlab.machine.units import quantity

_MOST_LINES = 64


class Segment(NamedTuple):
    """A stretch of one rank's time, in seconds, and the span it is in (``label``, "" for none).

    ``kind`` is "compute", "wait" (the rank waits for ``message``: for the other side, for a link, or while it travels)
    or "communication" (``message`` travels; the rank may do something else meanwhile).
    """

    rank: int
    start: float
    end: float
    kind: str
    label: str
    message: Message | None


class Arrow(NamedTuple):
    """A send and its receive: on the link from ``source`` to ``target`` from ``start`` to ``end``, in seconds."""

    source: int
    target: int
    start: float
    end: float
    message: Message


class SpanTime(NamedTuple):
    """A labelled stretch of a rank, in seconds; ``depth`` counts the spans around it."""

    rank: int
    start: float
    end: float
    name: str
    depth: int


@dataclass(frozen=True, repr=False)
class Timeline:
    """What :func:`distlab.machine.replay.replay` returns, in seconds, exact; lists are by rank.

    At any moment a rank is busy (it computes), or else its communication is exposed (something of its own is on a
    link), or else it is idle. Communication while it is busy is hidden. Everything is cut at ``begin`` and ``end``:
    what is never waited for may still be on its way at the end. ``notes`` are things to know before reading it,
    ``as_if`` says what was scaled. ``lanes`` and ``operations`` are what replay wrote; read ``segments`` and
    ``arrows``.
    """

    machine: Machine
    lanes: Sequence[Lane]
    operations: Sequence[Operation]
    spans: Sequence[Sequence[SpanTime]]
    begin: float = 0.0
    end: float = 0.0
    notes: tuple[str, ...] = ()
    as_if: str = ""

    @property
    def wall(self) -> float:
        """Seconds from the begin to the end."""
        return self.end - self.begin

    @cached_property
    def segments(self) -> list[list[Segment]]:
        """By rank, in order of their starts: what it computes, waits for, and has on its links."""
        return [sorted(self._segments(rank), key=_order) for rank in range(len(self.lanes))]

    @cached_property
    def arrows(self) -> list[Arrow]:
        """Sends with their receives, in the order in which they took their links."""
        pairs = (operation for operation in self.operations if operation.is_p2p)
        return [_arrow(pair) for pair in pairs if pair.end >= self.begin and pair.start <= self.end]

    @cached_property
    def busy(self) -> list[float]:
        """Seconds in which each rank computes."""
        return [intervals.length(self._computing(rank)) for rank in range(len(self.lanes))]

    @cached_property
    def communication(self) -> list[float]:
        """Seconds in which something of each rank's is on a link; what travels at once counts once."""
        return [intervals.length(self._communicating(rank)) for rank in range(len(self.lanes))]

    @cached_property
    def hidden(self) -> list[float]:
        """Seconds of communication in which the rank computes."""
        ranks = range(len(self.lanes))
        return [intervals.overlap(self._communicating(rank), self._computing(rank)) for rank in ranks]

    @property
    def exposed(self) -> list[float]:
        """Seconds of communication in which the rank does not compute."""
        return [total - hidden for total, hidden in zip(self.communication, self.hidden)]

    @property
    def idle(self) -> list[float]:
        """Seconds in which the rank neither computes nor has anything on a link."""
        return [max(0.0, self.wall - busy - exposed) for busy, exposed in zip(self.busy, self.exposed)]

    @property
    def bubbles(self) -> list[float]:
        """By rank, the share of the wall time in which it does not compute: 1 − busy / wall."""
        return [1 - busy / self.wall if self.wall else 0.0 for busy in self.busy]

    @property
    def bubble(self) -> float:
        """The mean of the ranks' bubbles."""
        return sum(self.bubbles) / len(self.lanes) if self.lanes else 0.0

    @cached_property
    def critical_path(self) -> list[Segment]:
        """The chain of work and communication that sets the end: each segment begins where the one before ends."""
        path = critical_path(self.lanes, self.end)
        return [segment for rank, row in path for segment in self._cut(rank, [row], "communication")]

    def during(self, name: str) -> Timeline:
        """The part from the first begin to the last end of the spans called ``name``, on any rank.

        Raises ValueError if there is none.
        """
        named = [span for spans in self.spans for span in spans if span.name == name]
        if not named:
            known = sorted({span.name for spans in self.spans for span in spans})
            raise ValueError(f"no span is called {name!r}; there are {', '.join(known) or 'none'}")
        return replace(self, begin=min(span.start for span in named), end=max(span.end for span in named))

    def __repr__(self) -> str:
        ranks = len(self.lanes)
        title = ", ".join(filter(None, [f"modelled on {self.machine.describe(ranks)}", self.as_if]))
        lines = [title, f"{quantity(self.wall, 's')} in all, bubble {self.bubble:.4f}"]
        lines += [self._words(rank) for rank in range(min(ranks, _MOST_LINES))]
        if ranks > _MOST_LINES:
            lines.append(f"… and {ranks - _MOST_LINES} ranks more")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _words(self, rank: int) -> str:
        numbers = (self.busy, self.exposed, self.hidden, self.idle)
        busy, exposed, hidden, idle = (quantity(of_rank[rank], "s") for of_rank in numbers)
        return f"rank {rank}: busy {busy}, communication {exposed} exposed and {hidden} hidden, idle {idle}"

    @cached_property
    def _links(self) -> list[list[Row]]:
        """By rank, what it has on its links."""
        links: list[list[Row]] = [[] for _ in self.lanes]
        for operation in self.operations:
            for rank, _, label, _ in operation.entries:
                links[rank].append((operation.start, operation.end, label, operation))
        return links

    def _segments(self, rank: int) -> list[Segment]:
        return self._cut(rank, rows(self.lanes[rank]), "wait") + self._cut(rank, self._links[rank], "communication")

    def _cut(self, rank: int, of_rank: Iterable[Row], kind: str) -> list[Segment]:
        """The parts of rows between begin and end, if they last any time; those with an operation are of ``kind``."""
        segments = []
        for start, end, label, operation in of_rank:
            start, end = max(start, self.begin), min(end, self.end)
            if end > start and operation is None:
                segments.append(Segment(rank, start, end, "compute", label, None))
            elif end > start:
                segments.append(Segment(rank, start, end, kind, label, operation.message(rank)))
        return segments

    def _computing(self, rank: int) -> list[intervals.Interval]:
        times = [(start, end) for start, end, _, operation in rows(self.lanes[rank]) if operation is None]
        return intervals.clip(times, self.begin, self.end)

    def _communicating(self, rank: int) -> list[intervals.Interval]:
        times = [(start, end) for start, end, _, _ in self._links[rank]]
        return intervals.clip(intervals.union(times), self.begin, self.end)


def _order(segment: Segment) -> tuple[float, float, str, int]:
    return segment.start, segment.end, segment.kind, segment.message.id if segment.message else 0


def _arrow(pair: Operation) -> Arrow:
    (source, message, *_), (target, *_) = pair.entries
    return Arrow(source, target, pair.start, pair.end, message)
