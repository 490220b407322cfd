"""Chart: lanes on a board: boxes for what is computed, letters where they fit, bands under them for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from distlab.machine.intervals import Interval
from distlab.show.board import Board, Rectangle
from distlab.show.colours import COMMUNICATION, INK, PALE, WHITE, Look, okabe_ito, stem
from distlab.show.lanes import Box, Lane, looks_of, merged, times
from distlab.show.letters import width_of

UNNAMED = "computes"  # in a key: work in no span
_HIGHEST = 0.62  # inches of a lane
_MOST_LETTERS = 300  # words that a board can hold without becoming slow
_DARK = okabe_ito["blue"]
_APART = 0.005  # inches
_ROOM = 0.2 / 72  # inches beside a text, for each point of its size


class Style(NamedTuple):
    """What is how large: boxes and bands in parts of a lane from its top, edges in points."""

    box: tuple[float, float]
    band: tuple[float, float] = (0.777, 0.95)
    size: float = 11.0  # points, of names
    gap: float = 0.1  # inches from a lane to its name
    edge: float = 1.0
    narrow: float = 0.04  # inches: a narrower box has no edge
    together: float = 0.0  # inches: narrower boxes are one with their like beside them
    least: float = 0.01  # inches that even the narrowest box is wide


WITH_BANDS, ALONE = Style((0.08, 0.76)), Style((0.08, 0.92))


class Chart:
    """Lanes in an area of a board, all equally high, from ``begin`` to ``end`` in seconds."""

    def __init__(self, board: Board, area: Rectangle, lanes: Sequence[Lane], begin: float, end: float, style: Style):
        self.board, self.lanes, self.begin, self.style = board, lanes, begin, style
        self.left, self.top, self.right, _ = area
        self.height = min(_HIGHEST, (area[3] - area[1]) / max(1, len(lanes)))
        self.inches_of_second = (self.right - self.left) / (end - begin or 1.0)

    def x(self, time: float) -> float:
        """Where a moment is."""
        return self.left + (time - self.begin) * self.inches_of_second

    def y(self, number: int, part: float | None = None) -> float:
        """How far down a part of a lane is; without a part, the middle of its boxes."""
        return self.top + (number + (sum(self.style.box) / 2 if part is None else part)) * self.height

    def draw_names(self) -> None:
        """Writes each lane's name and remark beside it."""
        for number, lane in enumerate(self.lanes):
            self.board.word(self.left - self.style.gap, self.y(number), lane.name, self.style.size, "right")
            self.board.word(self.right + self.style.gap, self.y(number), lane.remark, self.style.size, "left")

    def draw_boxes(self, looks: Mapping[str, Look]) -> dict[str, Look]:
        """Draws what is computed, in order of looks; returns those that occur."""
        by_kind: defaultdict[str, list[Rectangle]] = defaultdict(list)
        for number, lane in enumerate(self.lanes):
            for box in self.merged(lane.boxes, self.style.together):
                x0, y0, x1, y1 = self._rectangle(number, self.style.box, box.start, box.end)
                by_kind[box.kind].append((x0, y0, max(x1, x0 + self.style.least), y1))
        there = {kind: look for kind, look in looks.items() if kind in by_kind}
        for kind, look in there.items():
            self.board.boxes(by_kind[kind], look, width=self.style.edge, narrow=self.style.narrow)
        return there

    def draw_bands(self, bands: Iterable[Iterable[Interval]]) -> None:
        """Draws by lane when something is on its links."""
        places = [(number, *times) for number, of_lane in enumerate(bands) for times in of_lane]
        rectangles = [self._rectangle(number, self.style.band, start, end) for number, start, end in places]
        self.board.boxes(rectangles, COMMUNICATION, width=self.style.edge, narrow=self.style.narrow)

    def label_boxes(self, looks: Mapping[str, Look], size: float) -> None:
        """Writes into each box of a lane that has a name its label, or its beginning, if it fits."""
        for number, lane in enumerate(self.lanes):
            for box in self.merged(lane.boxes, room_of("F", size)) if lane.name else ():
                look = looks[box.kind]
                colour, around = WHITE if look.colour == _DARK else INK, look.colour if look.hatch else ""
                self.label(number, box, _short_forms(box.label), size, colour, around)

    def label(self, number: int, box: Box, texts: Iterable[str], size: float, colour: str, around: str) -> None:
        """Writes the first of some texts that fits into a box, if any does."""
        text = next((text for text in texts if self._has_room(box, text, size)), "")
        self.board.word(self.x((box.start + box.end) / 2), self.y(number), text, size, colour=colour, around=around)

    def size_of_labels(self, sizes: Sequence[float]) -> float:
        """The first of some sizes in which every box has room for its label; 0 if there is none, or they are many."""
        boxes = [box for lane in self.lanes for box in lane.boxes]
        if len(boxes) > _MOST_LETTERS:
            return 0
        return next((size for size in sizes if all(self._has_room(box, box.label, size) for box in boxes)), 0)

    def _has_room(self, box: Box, text: str, size: float) -> bool:
        return room_of(text, size) <= (box.end - box.start) * self.inches_of_second

    def merged(self, boxes: Iterable[Box], narrow: float) -> list[Box]:
        """Boxes, but those narrower than ``narrow`` inches are one with their like beside them."""
        return merged(boxes, narrow / self.inches_of_second, _APART / self.inches_of_second)

    def _rectangle(self, number: int, parts: tuple[float, float], start: float, end: float) -> Rectangle:
        return self.x(start), self.y(number, parts[0]), self.x(end), self.y(number, parts[1])


def room_of(text: str, size: float) -> float:
    """The inches that a text is wide, with a little room beside it."""
    return width_of(text, size) + _ROOM * size


def _short_forms(label: str) -> list[str]:
    """What may stand in a box: the label, or its beginning; "F" says what "F12" is, "a" does not say "all-reduce"."""
    return [label, f"{label[:4]}…", f"{label[:2]}…"] if len(stem(label)) > 2 else [label, label[:1]]


def draw_lanes(
    board: Board,
    area: Rectangle,
    lanes: Sequence[Lane],
    times_shown: tuple[float, float],
    ends: tuple[str, str],
    looks: Mapping[str, Look] | None = None,
    unnamed: str = UNNAMED,
) -> Chart:
    """Draws lanes as demos show them, from one of ``times_shown`` to the other, which ``ends`` have in words; a key.

    Letters stand in all boxes, smaller ones where they must; where even these have no room, hatches.
    """
    has_bands = any(lane.messages for lane in lanes)
    chart = Chart(board, area, lanes, *times_shown, WITH_BANDS if has_bands else ALONE)
    looks = looks or looks_of(lanes)
    chart.draw_names()
    board.lines([(chart.left, chart.y(number), chart.right, chart.y(number)) for number in range(len(lanes))])
    size = chart.size_of_labels((11, 9))
    shown = {kind: Look(look.colour, "") for kind, look in looks.items()} if size else looks
    key = {kind or unnamed: looks[kind] for kind in chart.draw_boxes(shown)}
    if size:
        chart.label_boxes(shown, size)
    chart.draw_bands([times(lane.messages) for lane in lanes])
    bottom = chart.y(len(lanes), 0) + 0.13
    for x, words in zip((chart.left, chart.right), ends):
        board.word(x, bottom, words, colour=PALE)
    board.key(chart.left, bottom + 0.3, key | ({"on a link": COMMUNICATION} if has_bands else {}))
    return chart
