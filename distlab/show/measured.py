"""measured(): what happened when by this computer's own clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from distlab.events import Compute, Done, Event, Exit, Fail, MakeGroup, Message, Span, Wait
from distlab.machine.timeline import Arrow, Segment, SpanTime, Timeline
from distlab.recording import Recording

CLOCK = "this computer, measured"
RULE = "a rank waits until all have issued an operation; from then until it has waited for it, it communicates"


def measured(recording: Recording) -> Timeline:
    """The timeline by the recorded times.

    RULE says what is waiting and what is communication: how long a message really travelled is not known. Raises
    ValueError for a recording without times, or a scaled one.
    """
    if recording.as_if:
        raise ValueError(f"Nobody measured this: the recording is {recording.as_if}. Give a machine to model it on.")
    times = [time for history in recording.ranks for event in history for time in _times(event)]
    if not any(times):
        raise ValueError("This recording has no measured times: it was written by hand. Give a machine to model it on.")
    issues = _Issues(recording)
    ranks = [_Rank(rank, history, issues) for rank, history in enumerate(recording.ranks)]
    end, notes = _end(recording, max(times))
    spans = [[s._replace(end=min(s.end, end)) for s in rank.spans if s.start <= end] for rank in ranks]
    return Timeline(
        CLOCK,
        lambda rank, kind: [segment for segment in ranks[rank].segments if segment.kind == kind],
        lambda: [arrow for rank in ranks for arrow in rank.arrows],
        spans,
        begin=min(times),
        end=end,
        notes=(*recording.notes, *notes, RULE),
    )


def _end(recording: Recording, last: float) -> tuple[float, list[str]]:
    """How far all ranks are known, and a note if that is not to the end: a rank whose record was cut did not idle."""
    if not any(note.startswith("cut after") for note in recording.notes):
        return last, []
    ends = [_known_until(history, last) for history in recording.ranks]
    rank = ends.index(min(ends))
    return ends[rank], [f"shown as far as all ranks are known: the record of rank {rank} ends first"]


def _known_until(history: Sequence[Event], last: float) -> float:
    if history and isinstance(history[-1], Exit):
        return last
    return max((time for event in history for time in _times(event)), default=last)


def _times(event: Event) -> tuple[float, ...]:
    if isinstance(event, Compute):
        return event.start, event.end
    if isinstance(event, Message | Wait):
        return (event.start,)
    if isinstance(event, Done | Fail):
        return (event.end,)
    return (event.time,) if isinstance(event, Span | MakeGroup | Exit) else ()


class _Issues:
    """Which messages belong together, and when the last of them was issued."""

    def __init__(self, recording: Recording):
        self._times: defaultdict[tuple, list[float]] = defaultdict(list)
        self._keys: dict[tuple[int, int], tuple] = {}
        self.sources: dict[tuple, int] = {}
        counts: defaultdict[tuple, int] = defaultdict(int)
        for rank, history in enumerate(recording.ranks):
            found = {event.id: event.source for event in history if type(event) is Done and event.source is not None}
            for message in history:
                if type(message) is Message:
                    channel = _channel(rank, message, found)
                    counts[channel, rank] += 1
                    key = self._keys[rank, message.id] = channel, counts[channel, rank]
                    self._times[key].append(message.start)

    def complete(self, rank: int, message: Message) -> float:
        """When all who take part had issued it, as far as was recorded."""
        return max(self._times[self._keys[rank, message.id]])

    def source(self, rank: int, message: Message) -> int | None:
        """Who sent what was received, None if nobody is known to have."""
        (source, *_), _ = key = self._keys[rank, message.id]
        return source if len(self._times[key]) == 2 else None


def _channel(rank: int, message: Message, found: dict[int, int]) -> tuple:
    """What messages that belong together agree in: in it they are in order."""
    if message.kind == "send":
        return rank, message.peer, message.group, message.tag
    if message.kind == "recv":
        return found.get(message.id, message.peer), rank, message.group, message.tag
    return ("collective", message.group)


class _Rank:
    """Reads one rank's history into segments, spans and the arrows that end there."""

    def __init__(self, rank: int, history: Sequence[Event], issues: _Issues):
        self.rank, self.issues = rank, issues
        self.arrows: list[Arrow] = []
        self.spans: list[SpanTime] = []
        self._open: list[Span] = []
        self.segments = list(self._read(history))

    def _read(self, history: Sequence[Event]) -> Iterator[Segment]:
        messages: dict[int, tuple[Message, str]] = {}
        waits: dict[int, float] = {}
        for event in history:
            label = self._open[-1].name if self._open else ""
            if isinstance(event, Compute):
                yield Segment(self.rank, event.start, event.end, "compute", label, None)
            elif isinstance(event, Message):
                messages[event.id] = event, label
            elif isinstance(event, Wait) and event.when != "thread":  # else the rank's main thread goes on meanwhile
                waits[event.id] = event.start
            elif isinstance(event, Fail) and event.id in waits:
                yield Segment(self.rank, waits[event.id], event.end, "wait", label, messages[event.id][0])
            elif isinstance(event, Done):
                yield from self._done(event, *messages[event.id], waits.get(event.id, event.end))
            elif isinstance(event, Span):
                self._mark(event)
            elif isinstance(event, MakeGroup) and event.is_made:
                yield Segment(self.rank, waits.get(-1, event.time), event.time, "wait", label, None)
            elif isinstance(event, MakeGroup):
                waits[-1] = event.time

    def _done(self, done: Done, message: Message, label: str, since: float) -> Iterator[Segment]:
        complete = self.issues.complete(self.rank, message)
        yield Segment(self.rank, since, done.end, "wait", label, message)
        yield Segment(self.rank, complete, done.end, "communication", label, message)
        source = self.issues.source(self.rank, message) if message.kind == "recv" else None
        if source is not None:
            self.arrows.append(Arrow(source, self.rank, min(complete, done.end), done.end, message))

    def _mark(self, span: Span) -> None:
        if span.name:
            self._open.append(span)
        elif self._open:
            opened = self._open.pop()
            self.spans.append(SpanTime(self.rank, opened.time, span.time, opened.name, len(self._open)))
