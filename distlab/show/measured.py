"""The scene as it was on this computer, by its own clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from distlab.events import Compute, Done, Event, Exit, Fail, MakeGroup, Message, Span, Wait
from distlab.machine.timeline import Arrow, Segment, SpanTime
from distlab.recording import Recording
from distlab.show.scene import RULE, Scene, in_words

CLOCK = "this computer, measured"


def measured(recording: Recording, during: str = "") -> Scene:
    """The scene by the recorded times.

    RULE says what is waiting and what is communication: how long a message really travelled is not known. Raises
    ValueError for a recording without times, or a scaled one, and for a span that is not there.
    """
    if recording.as_if:
        raise ValueError(f"Nobody measured this: the recording is {recording.as_if}. Give a machine to model it on.")
    times = [time for history in recording.ranks for event in history for time in _times(event)]
    if not any(times):
        raise ValueError("This recording has no measured times: it was written by hand. Give a machine to model it on.")
    issues = _Issues(recording)
    ranks = [_Rank(rank, history, issues) for rank, history in enumerate(recording.ranks)]
    arrows = [arrow for rank in ranks for arrow in rank.arrows]
    segments, spans = [rank.segments for rank in ranks], [rank.spans for rank in ranks]
    end, notes = _end(recording, max(times))
    whole = Scene(CLOCK, segments, arrows, spans, min(times), end, (*recording.notes, *notes, RULE))
    whole = _between(whole, whole.begin, end) if notes else whole
    return _cut(whole, during) if during else whole


def _end(recording: Recording, last: float) -> tuple[float, list[str]]:
    """How far all ranks are known, and a note if that is not to the end: a rank whose record was cut did not idle."""
    if not any(note.startswith("cut after") for note in recording.notes):
        return last, []
    ends = [_known_until(history, last) for history in recording.ranks]
    rank = ends.index(min(ends))
    return ends[rank], [f"shown as far as all ranks are known: the record of rank {rank} ends first"]


def _known_until(history: list[Event], last: float) -> float:
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

    def __init__(self, rank: int, history: list[Event], issues: _Issues):
        self.rank, self.issues = rank, issues
        self.arrows: list[Arrow] = []
        self.spans: list[SpanTime] = []
        self._open: list[Span] = []
        self.segments = sorted(self._read(history), key=lambda s: (s.start, s.end, s.kind))

    def _read(self, history: list[Event]) -> Iterator[Segment]:
        messages: dict[int, tuple[Message, str]] = {}
        waits: dict[int, float] = {}
        for event in history:
            label = self._open[-1].name if self._open else ""
            if isinstance(event, Compute):
                yield from self._segment(event.start, event.end, "compute", label)
            elif isinstance(event, Message):
                messages[event.id] = event, label
            elif isinstance(event, Wait) and event.when != "thread":  # else the rank's main thread goes on meanwhile
                waits[event.id] = event.start
            elif isinstance(event, Fail) and event.id in waits:
                yield from self._segment(waits[event.id], event.end, "wait", label, messages[event.id][0])
            elif isinstance(event, Done):
                yield from self._done(event, *messages[event.id], waits.get(event.id, event.end))
            elif isinstance(event, Span):
                self._mark(event)
            elif isinstance(event, MakeGroup) and event.is_made:
                yield from self._segment(waits.get(-1, event.time), event.time, "wait", label)
            elif isinstance(event, MakeGroup):
                waits[-1] = event.time

    def _done(self, done: Done, message: Message, label: str, since: float) -> Iterator[Segment]:
        complete = self.issues.complete(self.rank, message)
        yield from self._segment(since, done.end, "wait", label, message)
        yield from self._segment(complete, done.end, "communication", label, message)
        source = self.issues.source(self.rank, message) if message.kind == "recv" else None
        if source is not None:
            self.arrows.append(Arrow(source, self.rank, min(complete, done.end), done.end, message))

    def _segment(self, start: float, end: float, kind: str, label: str, message=None) -> Iterator[Segment]:
        if end > start:
            yield Segment(self.rank, start, end, kind, label, message)

    def _mark(self, span: Span) -> None:
        if span.name:
            self._open.append(span)
        elif self._open:
            opened = self._open.pop()
            self.spans.append(SpanTime(self.rank, opened.time, span.time, opened.name, len(self._open)))


def _cut(scene: Scene, name: str) -> Scene:
    """The part from the first begin to the last end of the spans of a name."""
    named = [span for spans in scene.spans for span in spans if span.name == name]
    if not named:
        known = sorted({span.name for spans in scene.spans for span in spans})
        raise ValueError(f"no span is called {name!r}; there are {', '.join(known) or 'none'}")
    begin, end = min(span.start for span in named), max(span.end for span in named)
    return replace(_between(scene, begin, min(end, scene.end)), clock=scene.clock + in_words(name))


def _between(scene: Scene, begin: float, end: float) -> Scene:
    """What of a scene lies between two times."""
    segments = [
        [s._replace(start=max(s.start, begin), end=min(s.end, end)) for s in of_rank if s.end > begin and s.start < end]
        for of_rank in scene.segments
    ]
    arrows = [arrow for arrow in scene.arrows if arrow.end >= begin and arrow.start <= end]
    return replace(scene, segments=segments, arrows=arrows, begin=begin, end=end)
