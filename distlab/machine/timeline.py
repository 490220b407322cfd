"""Timeline: what each rank did when, by the clock of a machine or of this computer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from distlab.events import Message
from distlab.machine import intervals
from distlab.machine.units import quantity

KINDS = ("compute", "wait", "communication")
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
    """What happened when, in seconds of ``clock``, exact; lists are by rank.

    At any moment a rank is busy (it computes), or else its communication is exposed (something of its own is on a
    link), or else it is idle. Communication while it is busy is hidden. Everything is cut at ``begin`` and ``end``:
    what is never waited for may still be on its way at the end. ``notes`` are things to know before reading it,
    ``as_if`` says what was scaled, ``part`` names the spans that were cut out. ``is_counted`` is False where ranks
    worked and nobody counted it, so that nothing is known of how busy they are.

    ``segments_of`` a rank and a kind, ``arrows_of`` and ``path_to`` an end give the whole, as it is asked for: with a
    million events it takes longer than the replay. Read ``segments``, ``arrows`` and ``critical_path``.
    """

    clock: str
    segments_of: Callable[[int, str], Iterable[Segment]]
    arrows_of: Callable[[], Iterable[Arrow]]
    spans: Sequence[Sequence[SpanTime]]
    begin: float
    end: float
    notes: tuple[str, ...] = ()
    as_if: str = ""
    path_to: Callable[[float], Iterable[Segment]] = lambda end: ()
    part: str = ""
    is_counted: bool = True

    @property
    def title(self) -> str:
        """Clock, scale and part in words."""
        return ", ".join(filter(None, [self.clock, self.as_if, f'during "{self.part}"' if self.part else ""]))

    @property
    def wall(self) -> float:
        """Seconds from the begin to the end."""
        return self.end - self.begin

    @cached_property
    def segments(self) -> list[list[Segment]]:
        """By rank, in order of their starts: what it computes, waits for, and has on its links."""
        return [sorted([s for kind in KINDS for s in self.of(rank, kind)], key=_order) for rank in self._ranks]

    @cached_property
    def arrows(self) -> list[Arrow]:
        """Sends with their receives; on a machine in the order in which they took their links."""
        return [arrow for arrow in self.arrows_of() if arrow.end >= self.begin and arrow.start <= self.end]

    def of(self, rank: int, kind: str) -> list[Segment]:
        """What a rank does of one of KINDS, in order of starts."""
        return sorted(self._cut(self.segments_of(rank, kind)), key=_order)

    def times(self, rank: int, kind: str) -> list[intervals.Interval]:
        """When a rank does something of one of KINDS: in order and without overlaps."""
        return intervals.union((s.start, s.end) for s in self._cut(self.segments_of(rank, kind)))

    @cached_property
    def busy(self) -> list[float]:
        """Seconds in which each rank computes."""
        return [intervals.length(self.times(rank, "compute")) for rank in self._ranks]

    @cached_property
    def communication(self) -> list[float]:
        """Seconds in which something of each rank's is on a link; what travels at once counts once."""
        return [intervals.length(self.times(rank, "communication")) for rank in self._ranks]

    @cached_property
    def hidden(self) -> list[float]:
        """Seconds of communication in which the rank computes."""
        both = ((self.times(rank, "communication"), self.times(rank, "compute")) for rank in self._ranks)
        return [intervals.overlap(*times) for times in both]

    @property
    def exposed(self) -> list[float]:
        """Seconds of communication in which the rank does not compute."""
        return [total - hidden for total, hidden in zip(self.communication, self.hidden)]

    @property
    def idle(self) -> list[float]:
        """Seconds in which the rank neither computes nor has anything on a link."""
        idle = [self.wall - busy - exposed for busy, exposed in zip(self.busy, self.exposed)]
        return [seconds if seconds > 1e-9 * self.wall else 0.0 for seconds in idle]

    @property
    def bubbles(self) -> list[float]:
        """By rank, the share of the wall time in which it does not compute: 1 − busy / wall."""
        return [1 - busy / self.wall if self.wall else 0.0 for busy in self.busy]

    @property
    def bubble(self) -> float:
        """The mean of the ranks' bubbles."""
        return sum(self.bubbles) / len(self.spans) if self.spans else 0.0

    @cached_property
    def critical_path(self) -> list[Segment]:
        """The chain of work and communication that sets the end: each segment begins where the one before ends.

        Empty by this computer's clock, which does not tell.
        """
        return self._cut(self.path_to(self.end))

    def during(self, name: str) -> Timeline:
        """The part from the first begin to the last end of the spans called ``name``, on any rank.

        Raises ValueError if there is none.
        """
        named = [span for spans in self.spans for span in spans if span.name == name]
        if not named:
            known = sorted({span.name for spans in self.spans for span in spans})
            raise ValueError(f"no span is called {name!r}; there are {', '.join(known) or 'none'}")
        begin, end = min(span.start for span in named), max(span.end for span in named)
        return replace(self, begin=begin, end=end, part=name)

    def words(self, rank: int) -> str:
        """How a rank spends its time."""
        numbers = (self.busy, self.exposed, self.hidden, self.idle)
        busy, exposed, hidden, idle = (quantity(of_rank[rank], "s") for of_rank in numbers)
        return f"rank {rank}: busy {busy}, communication {exposed} exposed and {hidden} hidden, idle {idle}"

    def __repr__(self) -> str:
        title = ", ".join(filter(None, [self.clock, self.as_if]))
        lines = [title, f"{quantity(self.wall, 's')} in all, bubble {self.bubble:.4f}"]
        lines += [self.words(rank) for rank in self._ranks[:_MOST_LINES]]
        if len(self._ranks) > _MOST_LINES:
            lines.append(f"… and {len(self._ranks) - _MOST_LINES} ranks more")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    @property
    def _ranks(self) -> range:
        return range(len(self.spans))

    def _cut(self, segments: Iterable[Segment]) -> list[Segment]:
        """What of them is between begin and end, if it lasts any time."""
        begin, end = self.begin, self.end
        cut = (
            s if begin <= s.start and s.end <= end else s._replace(start=max(s.start, begin), end=min(s.end, end))
            for s in segments
        )
        return [segment for segment in cut if segment.end > segment.start]


def _order(segment: Segment) -> tuple[float, float, str, int]:
    return segment.start, segment.end, segment.kind, segment.message.id if segment.message else 0
