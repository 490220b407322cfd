"""A timeline as a trace: the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from distlab.events import ANY_SOURCE, P2P, Message
from distlab.machine.timeline import Arrow, Segment, SpanTime, Timeline
from distlab.recording import Recording

TRACKS = {"span": "spans", "compute": "computes", "wait": "waits", "communication": "communicates"}


def write_trace(path: str | Path, timeline: Timeline, recording: Recording) -> None:
    """Writes a timeline's trace as JSON; raises OSError saying what is wrong with the path."""
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder: name a file in it, such as {file / 'step.json'}")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {file.parent} for the trace {file.name}: make it first.")
    file.write_text(json.dumps(trace(timeline, recording)))


def trace(timeline: Timeline, recording: Recording) -> dict:
    """The trace of a timeline, whose messages' places and groups are those of ``recording``.

    A rank is a process, ``pid`` its number. Its tracks are TRACKS, each a thread whose ``tid`` is no other rank's; what
    it communicates at the same time takes several. Times are in microseconds from the begin of the timeline, to
    the nanosecond.
    """
    tracks = _Tracks(timeline, recording)
    events = [event for rank in range(len(timeline.segments)) for event in tracks.of(rank)]
    events += [end for number, ends in enumerate(tracks.arrows, 1) for end in _flow(number, *ends)]
    # Viewers take an event's surroundings from what stood before it: the outer slice before the inner, then arrows.
    # They also read the head of the file first, and stop at a key that they do not know.
    return {
        "displayTimeUnit": "ms",
        "otherData": {"clock": timeline.title, "notes": list(timeline.notes)},
        "traceEvents": sorted(events, key=lambda e: (e["ph"] != "M", e.get("ts", 0), -e.get("dur", -1))),
    }


@dataclass
class _Slice:
    """A stretch of a rank's time on one of its tracks, in nanoseconds; ``tid`` is known once it has its track."""

    rank: int
    kind: str
    start: int
    end: int
    name: str
    args: dict
    message: Message | None = None
    tid: int = 0

    def event(self) -> dict:
        """The slice as a complete event."""
        times = {"ts": self.start / 1000, "dur": (self.end - self.start) / 1000}
        return {"ph": "X", "name": self.name, "cat": self.kind, "pid": self.rank, "tid": self.tid, **times} | (
            {"args": self.args} if self.args else {}
        )


class _Tracks:
    """A timeline's slices, sorted into tracks; ``arrows`` are the slices at both ends of each message."""

    def __init__(self, timeline: Timeline, recording: Recording):
        self._timeline, self._recording, self._tids = timeline, recording, count(1)
        self._slices = [[*map(self._segment, of_rank)] for of_rank in timeline.segments]
        self._ends: defaultdict[tuple, list[_Slice]] = defaultdict(list)
        for each in (each for of_rank in self._slices for each in of_rank if each.kind == "communication"):
            self._ends[each.rank, each.message.kind, each.start].append(each)
        self.arrows = [self._arrow(arrow) for arrow in timeline.arrows]
        for rank, spans in enumerate(timeline.spans):
            self._slices[rank] += self._spans(rank, spans)

    def of(self, rank: int) -> Iterator[dict]:
        """The events of a rank: what it and its tracks are called, and the slices."""
        yield from _named("process", f"rank {rank}", rank, rank)
        for kind, name in TRACKS.items():
            lanes = _lanes([each for each in self._slices[rank] if each.kind == kind], nested=kind == "span")
            for number, lane in enumerate(lanes, 1):
                tid = next(self._tids)
                yield from _named("thread", name if number == 1 else f"{name} {number}", tid, rank, tid)
                for each in lane:
                    each.tid = tid
                    yield each.event()

    def _time(self, seconds: float) -> int:
        """Nanoseconds since the begin of the timeline; what lies outside of it is at its edge."""
        return round((min(max(seconds, self._timeline.begin), self._timeline.end) - self._timeline.begin) * 1e9)

    def _segment(self, segment: Segment) -> _Slice:
        start, end, message = self._time(segment.start), self._time(segment.end), segment.message
        name = _words(message) if message else segment.label or {"wait": "makes a group"}.get(segment.kind, "computes")
        args = ({"span": segment.label} if segment.label else {}) | (self._about(message) if message else {})
        return _Slice(segment.rank, segment.kind, start, end, name, args, message)

    def _spans(self, rank: int, spans: Sequence[SpanTime]) -> Iterator[_Slice]:
        for span in spans:
            if span.start <= self._timeline.end and span.end >= self._timeline.begin:
                yield _Slice(rank, "span", self._time(span.start), self._time(span.end), span.name, {})

    def _arrow(self, arrow: Arrow) -> tuple[_Slice, _Slice]:
        start, end = self._time(arrow.start), self._time(arrow.end)
        ends = (arrow.source, "send", start, arrow.target), (arrow.target, "recv", start, arrow.source)
        return tuple(self._end(*which, end if which[1] == "recv" else start, arrow.message) for which in ends)

    def _end(self, rank: int, kind: str, start: int, other: int, at: int, message: Message) -> _Slice:
        """The slice of a message on one of its ranks; a new one, as short as can be, where it took that rank no time:
        viewers drop an arrow that has no slice."""
        for each in self._ends[rank, kind, start]:
            if each.message.peer in (other, None, ANY_SOURCE):
                return each
        mine = message._replace(kind=kind, peer=other)
        self._slices[rank].append(_Slice(rank, "communication", at, at + 1, _words(mine), self._about(mine), mine))
        return self._slices[rank][-1]

    def _about(self, message: Message) -> dict:
        """What is worth knowing about a message: its bytes, what it is made of, its group, the learner's line."""
        places, groups = self._recording.places, self._recording.groups
        about = {"bytes": message.bytes, "dtype": message.dtype, "shape": list(message.shape)}
        about["group"] = groups[message.group].name
        if message.kind in P2P:
            about["tag"] = message.tag
        if message.place < len(places) and places[message.place]:
            about["place"] = places[message.place]
        return about


def _words(message: Message) -> str:
    if message.kind not in P2P:
        return message.kind
    peer = "any rank" if message.peer in (None, ANY_SOURCE) else f"rank {message.peer}"
    return f"{message.kind} {'to' if message.kind == 'send' else 'from'} {peer}"


class _Lane:
    """Slices on one track, and when those end that are still open, the outermost first."""

    def __init__(self):
        self.slices: list[_Slice] = []
        self._ends: list[int] = []

    def takes(self, each: _Slice, nested: bool) -> bool:
        """Adds a slice, which starts no earlier than those before, unless it overlaps one that it may not lie in."""
        while self._ends and self._ends[-1] <= each.start:
            self._ends.pop()
        if self._ends and not (nested and each.end <= self._ends[-1]):
            return False
        self.slices.append(each)
        self._ends.append(each.end)
        return True


def _lanes(slices: Sequence[_Slice], nested: bool) -> list[list[_Slice]]:
    """Slices on as few tracks as they need: what overlaps goes apart, unless one may lie ``nested`` in the other."""
    lanes: list[_Lane] = []
    for each in sorted(slices, key=lambda each: (each.start, -each.end)):
        if not any(lane.takes(each, nested) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].takes(each, nested)
    return [lane.slices for lane in lanes]


def _named(what: str, name: str, order: int, pid: int, tid: int | None = None) -> Iterator[dict]:
    where = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    yield {"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}}
    yield {"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": order}}


def _flow(number: int, source: _Slice, target: _Slice) -> Iterator[dict]:
    """An arrow from the begin of one slice to nearly the end of the other: the very end of a slice lies outside it."""
    for phase, each, time in (("s", source, source.start), ("f", target, _nearly_at_the_end(target))):
        event = {"ph": phase, "name": "message", "cat": "message", "id": number, "pid": each.rank, "tid": each.tid}
        yield event | {"ts": time / 1000} | ({"bp": "e"} if phase == "f" else {})


def _nearly_at_the_end(each: _Slice) -> int:
    return max(each.start, each.end - max(2, (each.end - each.start) // 100))
