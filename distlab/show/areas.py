"""Areas: the bytes that a rank holds, by kind, stacked over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from distlab.events import Memory, Span
from distlab.machine.units import quantity
from distlab.show.board import HANDLE, Board
from distlab.show.chart import room_of
from distlab.show.look import LETTERS, MID, RULE, looks_in_turn
from distlab.show.marks import Point, Rectangle

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
MOST_NAMES = 14  # spans whose names are written over the picture
LOOKS = looks_in_turn(KINDS)


class Stretch(NamedTuple):
    """A span, and the numbers of the first and the last look in it; there is none if the last is before the first."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Looks:
    """What one rank noted, its spans, and the numbers of the looks after which nobody looked for a while."""

    events: Sequence[Memory]
    spans: tuple[Stretch, ...] = ()
    last_before_a_gap: frozenset[int] = frozenset()

    @classmethod
    def of(cls, history: Sequence) -> Looks:
        """Reads a rank's history; its spans come out with the outer before the inner."""
        events, spans, open_ones, gaps = [], [], [], set()
        for event in history:
            if type(event) is Memory:
                events.append(event)
                if not open_ones and spans:
                    gaps.add(len(events) - 1)
            elif type(event) is Span and event.name:
                open_ones.append(len(spans))
                spans.append(Stretch(event.name, len(events), -1))
            elif type(event) is Span and open_ones:
                place = open_ones.pop()
                spans[place] = spans[place]._replace(last=len(events))  # the look right after it belongs to it
        most = len(events) - 1  # of what never ended, and where the recording was cut before a look
        spans = [span._replace(last=min(span.last, most) if span.last >= 0 else most) for span in spans]
        return cls(events, tuple(spans), frozenset(gaps))

    def during(self, name: str) -> Looks:
        """The looks inside the spans called ``name``, with the other spans that lie inside these."""
        named = [span for span in self.spans if span.name == name]
        looks = sorted({look for span in named for look in range(span.first, span.last + 1)})
        place = {look: number for number, look in enumerate(looks)}
        inner = [s for s in self.spans if s.name != name and s.first <= s.last and {s.first, s.last} <= place.keys()]
        return Looks(
            [self.events[look] for look in looks],
            tuple(Stretch(span.name, place[span.first], place[span.last]) for span in inner),
            frozenset(place[look] for look in looks if look in self.last_before_a_gap or look + 1 not in place),
        )

    @property
    def is_timed(self) -> bool:
        """Whether they have times, which looks written by hand do not."""
        return any(event.time for event in self.events)


def draw(board: Board, area: Rectangle, looks: Looks, top: int, by_time: bool, with_axis: bool = True) -> None:
    """Each kind on top of the one before, in an area that is ``top`` bytes and a little high.

    What was noted holds until the next note, or until a gap where nobody looked.
    """
    panel = _Panel(board, area, looks, 1.12 * top or 1.0, by_time)
    panel.draw_kinds()
    panel.draw_peak()
    panel.name_spans()
    panel.draw_axes(with_axis)


def explain(board: Board, x: float, y: float, runs: Sequence[Looks], by_time: bool) -> float:
    """A legend of the kinds that occur, from ``x`` on; returns how far down it reaches."""
    there = [kind for kind in KINDS if any(getattr(event, kind) for looks in runs for event in looks.events)]
    entries = {kind: partial(board.patch, LOOKS[kind]) for kind in there}
    if by_time and any(looks.last_before_a_gap for looks in runs):
        entries["not looked at"] = lambda x, y: board.frames([(x, y - 0.08, x + HANDLE, y + 0.08)], MID, 0.8, True)
    return board.legend(x, y, entries)


class _Panel:
    """One rank's looks in an area of a board: times from left to right, ``high`` bytes from the floor to the top."""

    def __init__(self, board: Board, area: Rectangle, looks: Looks, high: float, by_time: bool):
        self.board, self.looks, self.by_time, self.high = board, looks, by_time, high
        self.left, self.top, self.right, self.floor = area
        events = looks.events
        times = [event.time - events[0].time for event in events] if by_time else list(map(float, range(len(events))))
        self.times = [*times, times[-1] + (times[-1] / len(times) or 1.0)]

    def x(self, time: float) -> float:
        """Where a moment is."""
        return self.left + (self.right - self.left) * time / self.times[-1]

    def y(self, bytes: float) -> float:
        """How far down so many bytes reach."""
        return self.floor - (self.floor - self.top) * bytes / self.high

    def draw_kinds(self) -> None:
        """An area for each kind and each stretch of time in which somebody looked."""
        below = [0] * len(self.looks.events)
        for kind in KINDS:
            held = [getattr(event, kind) for event in self.looks.events]
            tops = [lower + bytes for lower, bytes in zip(below, held)]
            for first, last in self._stretches():
                if any(held[first : last + 1]):
                    over, under = self._steps(tops, first, last), self._steps(below, first, last)
                    self.board.area([*over, *reversed(under)], LOOKS[kind])
            below = tops

    def _stretches(self) -> list[tuple[int, int]]:
        """The first and the last look of each stretch without a gap; what came in a gap's end is held to it."""
        ends = sorted(self.looks.last_before_a_gap | {len(self.looks.events) - 1}) if self.by_time else []
        return list(zip([0, *(end + 1 for end in ends)], ends)) or [(0, len(self.looks.events) - 1)]

    def _steps(self, tops: Sequence[int], first: int, last: int) -> list[Point]:
        points = []
        for look in range(first, last + 1):
            is_before_a_gap = self.by_time and look in self.looks.last_before_a_gap
            end = self.times[look] if is_before_a_gap and look > first else self.times[look + 1]
            points += [(self.x(self.times[look]), self.y(tops[look])), (self.x(end), self.y(tops[look]))]
        return points

    def draw_peak(self) -> None:
        """A line at the most that was held."""
        y = self.y(max(event.total for event in self.looks.events))
        self.board.lines([(self.left, y, self.right, y)], MID, 1.0, style="--")

    def name_spans(self) -> None:
        """Writes the names of the outermost spans over where they are, if they are few, and where they fit."""
        outermost: list[Stretch] = []
        for span in self.looks.spans:
            if not outermost or span.first >= outermost[-1].last:
                outermost.append(span)
        for span in outermost if len(outermost) <= MOST_NAMES else ():
            x0, x1 = self.x(self.times[span.first]), self.x(self.times[min(span.last, len(self.times) - 1)])
            self.board.lines([(x0, self.top, x0, self.floor)], RULE, 0.8, style=":")
            if room_of(span.name, LETTERS) <= x1 - x0:
                self.board.word((x0 + x1) / 2, self.top + 0.12, span.name)

    def draw_axes(self, with_bytes: bool) -> None:
        """The floor and the left side, with bytes beside it, and seconds below where looks have times."""
        sides = [(self.left, self.top, self.left, self.floor), (self.left, self.floor, self.right, self.floor)]
        self.board.lines(sides, RULE, 0.8)
        for bytes in MaxNLocator(4).tick_values(0, self.high) if with_bytes else ():
            if 0 <= bytes <= self.high:
                self.board.lines([(self.left - 0.05, self.y(bytes), self.left, self.y(bytes))], RULE, 0.8)
                self.board.word(self.left - 0.1, self.y(bytes), quantity(bytes, "B"), align="right", colour=MID)
        for time in MaxNLocator(6).tick_values(0, self.times[-1]) if self.by_time else ():
            if 0 <= time <= self.times[-1]:
                self.board.lines([(self.x(time), self.floor, self.x(time), self.floor + 0.05)], RULE, 0.8)
                self.board.word(self.x(time), self.floor + 0.18, quantity(time, "s"), colour=MID)
