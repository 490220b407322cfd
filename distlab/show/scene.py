"""Scene: what a timeline shows, whichever clock it is by."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from distlab.events import Compute
from distlab.machine import intervals
from distlab.machine.hardware import Machine
from distlab.machine.replay import replay
from distlab.machine.timeline import Arrow, Segment, SpanTime, Timeline
from distlab.recording import Recording

MOST_ROWS = 64
RULE = "a rank waits until all have issued an operation; from then until it has waited for it, it communicates"


class Shares(NamedTuple):
    """Seconds of a rank: computing; communicating without and while computing; neither."""

    busy: float
    exposed: float
    hidden: float
    idle: float

    @property
    def bubble(self) -> float:
        """1 − busy / wall."""
        wall = self.busy + self.exposed + self.idle
        return 1 - self.busy / wall if wall else 0.0


class Box(NamedTuple):
    """A stretch that a rank computes in one go, in one span: its ``label`` ("" for none) and ``number``.

    Spans of the same label are numbered on each rank.
    """

    start: float
    end: float
    label: str
    number: int


@dataclass(frozen=True)
class Scene:
    """``clock`` says in words which clock it is; lists are by rank; times are in seconds of that clock.

    ``is_counted`` is False where ranks worked and nobody counted it, so that nothing is known of how busy they are.
    """

    clock: str
    segments: Sequence[Sequence[Segment]]
    arrows: Sequence[Arrow]
    spans: Sequence[Sequence[SpanTime]]
    begin: float
    end: float
    notes: tuple[str, ...] = ()
    is_counted: bool = True

    @property
    def wall(self) -> float:
        """Seconds that are shown."""
        return self.end - self.begin

    @cached_property
    def shown(self) -> list[int]:
        """The ranks that get a row: all, or so many that they fit, evenly spaced."""
        num_ranks = len(self.segments)
        return list(range(0, num_ranks, -(-num_ranks // MOST_ROWS) or 1))

    @property
    def folding(self) -> str:
        """What is left out, in words; "" if nothing is."""
        num_ranks = len(self.segments)
        return "" if len(self.shown) == num_ranks else f"{num_ranks:,} ranks: one in {self.shown[1]} has a row"

    @cached_property
    def shares(self) -> list[Shares]:
        """By rank, how its time is spent."""
        return [self._shares(rank) for rank in range(len(self.segments))]

    def boxes(self, rank: int) -> list[Box]:
        """What a rank computes, in order; what touches and is in the same span is one box."""
        starts: defaultdict[str, list[float]] = defaultdict(list)
        for span in self.spans[rank]:
            starts[span.name].append(span.start)
        for times in starts.values():
            times.sort()
        boxes: list[Box] = []
        for segment in self.segments[rank]:
            if segment.kind != "compute":
                continue
            box = Box(segment.start, segment.end, segment.label, bisect_right(starts[segment.label], segment.start))
            if boxes and boxes[-1][2:] == box[2:] and segment.start <= boxes[-1].end:
                boxes[-1] = boxes[-1]._replace(end=segment.end)
            else:
                boxes.append(box)
        return boxes

    def communicating(self, rank: int) -> list[intervals.Interval]:
        """When something of a rank's is on a link."""
        return intervals.union((s.start, s.end) for s in self.segments[rank] if s.kind == "communication")

    def _shares(self, rank: int) -> Shares:
        computing = intervals.union((s.start, s.end) for s in self.segments[rank] if s.kind == "compute")
        communicating = self.communicating(rank)
        busy, hidden = intervals.length(computing), intervals.overlap(computing, communicating)
        exposed = intervals.length(communicating) - hidden
        idle = self.wall - busy - exposed
        return Shares(busy, exposed, hidden, idle if idle > 1e-9 * self.wall else 0.0)


def modelled(recording: Recording, machine: Machine, during: str = "", dtype: str | None = None) -> Scene:
    """The scene as replayed on a machine; raises what replay raises, and ValueError for a span that is not there."""
    timeline: Timeline = replay(recording, machine, dtype)
    if during:
        timeline = timeline.during(during)
    notes = _without_work(recording)
    clock = f"modelled on {machine.describe(recording.world_size)}"
    return Scene(
        ", ".join(filter(None, [clock, timeline.as_if])) + in_words(during),
        timeline.segments,
        timeline.arrows,
        timeline.spans,
        timeline.begin,
        timeline.end,
        (*timeline.notes, *notes),
        is_counted=not notes,
    )


def in_words(during: str) -> str:
    """What a title says of a part."""
    return f', during "{during}"' if during else ""


def _without_work(recording: Recording) -> list[str]:
    """A note if work was seen and none of it was counted."""
    work = recording.events(Compute)
    if not work or any(event.flops or event.bytes or event.operators for event in work):
        return []
    return ['no work was counted (record="messages"): on a modelled clock it takes no time']
