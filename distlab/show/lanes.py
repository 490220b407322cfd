"""Lanes: a rank's row in a picture of a timeline, with what it computes, what is on its links, what it waits for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from distlab.machine import intervals
from distlab.machine.timeline import Segment, Timeline
from distlab.show.look import UNLABELLED, Look, looks_of_spans, stem

MOST_LANES = 64


class Box(NamedTuple):
    """A stretch of a rank's time in seconds, what stands in it, and of which kind it is ("" for work in no span).

    Each kind has its look. Boxes of the same label are told apart by their ``number``.
    """

    start: float
    end: float
    label: str
    kind: str
    number: int = 0


class Lane(NamedTuple):
    """A row: its name, what is said at its end, the boxes that it computes, its messages and its waits."""

    name: str
    remark: str
    boxes: Sequence[Box]
    messages: Sequence[Box] = ()
    waits: Sequence[Box] = ()


def lanes_of(timeline: Timeline) -> dict[int, Lane]:
    """Lanes by rank: of all ranks, or of so many that they fit, evenly spaced."""
    num_ranks = len(timeline.spans)
    lanes = {}
    for rank in range(0, num_ranks, -(-num_ranks // MOST_LANES) or 1):
        busy = f"{timeline.busy[rank] / (timeline.wall or 1.0):.0%} busy" if timeline.is_counted else "not counted"
        messages, waits = (list(map(_of_message, timeline.of(rank, kind))) for kind in ("communication", "wait"))
        lanes[rank] = Lane(f"rank {rank}", busy, _boxes(timeline, rank), messages, waits)
    return lanes


def folding(lanes: Mapping[int, Lane], num_ranks: int) -> str:
    """What has no lane, in words; "" if all ranks have one."""
    return "" if len(lanes) == num_ranks else f"{num_ranks:,} ranks: one in {list(lanes)[1]} has a row"


def _boxes(timeline: Timeline, rank: int) -> list[Box]:
    """What a rank computes, in order; what touches and is in the same span is one box."""
    starts: defaultdict[str, list[float]] = defaultdict(list)
    for span in sorted(timeline.spans[rank], key=lambda span: span.start):
        starts[span.name].append(span.start)
    boxes: list[Box] = []
    for _, start, end, _, label, _ in timeline.of(rank, "compute"):
        box = Box(start, end, label, stem(label), bisect_right(starts[label], start))
        if boxes and boxes[-1][2:] == box[2:] and start <= boxes[-1].end:
            boxes[-1] = boxes[-1]._replace(end=end)
        else:
            boxes.append(box)
    return boxes


def _of_message(segment: Segment) -> Box:
    kind = segment.message.kind if segment.message else ""
    return Box(segment.start, segment.end, kind, kind)


def looks_of(lanes: Iterable[Lane]) -> dict[str, Look]:
    """A look for each kind of box; the last is for work in no span."""
    return looks_of_spans(box.label for lane in lanes for box in lane.boxes) | {"": UNLABELLED}


def merged(boxes: Iterable[Box], narrow: float, apart: float) -> list[Box]:
    """The same, but of one kind those shorter than ``narrow`` seconds and not ``apart`` are one, named by the kind."""
    merged: list[Box] = []
    was_narrow = False
    for box in boxes:
        is_narrow = box.end - box.start < narrow
        is_next = merged and merged[-1].end >= box.start - apart and merged[-1].kind == box.kind
        if is_narrow and was_narrow and is_next:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, box.end), label=stem(box.label))
        else:
            merged.append(box)
        was_narrow = is_narrow
    return merged


def times(boxes: Iterable[Box]) -> list[intervals.Interval]:
    """When there is any of the boxes: in order and without overlaps."""
    return intervals.union((box.start, box.end) for box in boxes)
