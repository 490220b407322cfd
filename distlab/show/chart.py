"""Chart: lanes on a board: boxes for what is computed, letters where they fit, bands under them for messages."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from distlab.show.board import HANDLE, Board, Rectangle
from distlab.show.lanes import Box, Lane, looks_of, merged
from distlab.show.letters import width_of
from distlab.show.look import LETTERS, MID, Look, look_of_message, stem

UNNAMED = "computes"  # in a key: work in no span
SIZES = (LETTERS, 12.0, 10.0)  # points of labels, as many as fit
MOST_LABELS = 300  # words that a board can hold without becoming slow
_LEAST_APART = 0.21  # inches from name to name
_APART = 0.005  # inches
_ROOM = 0.2 / 72  # inches beside a text, for each point of its size


class Style(NamedTuple):
    """What is how large: boxes and bands in parts of a lane from its top, edges in points."""

    box: tuple[float, float]
    band: tuple[float, float] = (0.777, 0.95)
    size: float = LETTERS  # points, of names
    gap: float = 0.1  # inches from a lane to its name
    apart: float = 0.014  # inches between two boxes
    narrow: float = 0.04  # inches: a narrower box touches the next
    together: float = 0.0  # inches: narrower boxes are one with their like beside them
    least: float = 0.01  # inches that even the narrowest box is wide
    highest: float = 0.62  # inches of a lane


WITH_BANDS, ALONE = Style((0.08, 0.76)), Style((0.08, 0.92))


class Chart:
    """Lanes in an area of a board, all equally high, from ``begin`` to ``end`` in seconds."""

    def __init__(self, board: Board, area: Rectangle, lanes: Sequence[Lane], begin: float, end: float, style: Style):
        self.board, self.lanes, self.begin, self.end, self.style = board, lanes, begin, end, style
        self.left, self.top, self.right, _ = area
        self.height = min(style.highest, (area[3] - area[1]) / max(1, len(lanes)))
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

    def rule(self) -> None:
        """Draws a line under each lane, where nothing else stands."""
        floors = [self.y(number, 1.0) for number in range(len(self.lanes))]
        self.board.lines([(self.left, y, self.right, y) for y in floors], width=0.6, under=True)

    def draw_boxes(self, looks: Mapping[str, Look]) -> dict[str, Look]:
        """Draws what is computed, in order of looks; returns those that occur."""
        by_kind: defaultdict[str, list[Rectangle]] = defaultdict(list)
        for number, lane in enumerate(self.lanes):
            for box in self.merged(lane.boxes, self.style.together):
                x0, y0, x1, y1 = self._rectangle(number, self.style.box, box.start, box.end)
                by_kind[box.kind].append((x0, y0, max(x1, x0 + self.style.least), y1))
        there = {kind: look for kind, look in looks.items() if kind in by_kind}
        for kind, look in there.items():
            self.board.boxes(by_kind[kind], look, self.style.apart, self.style.narrow)
        return there

    def draw_bands(self, narrow: float = 0.0) -> dict[str, Look]:
        """Draws under each lane what is on its links, by kind; returns the looks of those that occur."""
        by_kind: defaultdict[str, list[Rectangle]] = defaultdict(list)
        for number, lane in enumerate(self.lanes):
            for band in self.merged(lane.messages, narrow):
                by_kind[band.kind].append(self._rectangle(number, self.style.band, band.start, band.end))
        looks = {kind: look_of_message(kind) for kind in sorted(by_kind)}
        for kind, look in looks.items():
            self.board.boxes(by_kind[kind], look, self.style.apart, self.style.narrow)
        return looks

    def draw_waits(self, narrow: float = 0.0) -> bool:
        """Draws dotted lines where a rank waits, with what it waits for if there is room; whether there are any."""
        lines: list[Rectangle] = []
        for number, lane in enumerate(self.lanes):
            y = self.y(number)
            for wait in self.merged(lane.waits, narrow):
                x0, x1 = self.x(wait.start), self.x(wait.end)
                if not lane.name or not self.has_room(wait, wait.label, self.style.size):
                    lines.append((x0, y, x1, y))
                    continue
                half = room_of(wait.label, self.style.size) / 2
                self.board.word((x0 + x1) / 2, y, wait.label, self.style.size, colour=MID)
                lines += [(x0, y, (x0 + x1) / 2 - half, y), ((x0 + x1) / 2 + half, y, x1, y)]
        self.board.lines(lines, MID, 1.2, style=":", under=True)
        return bool(lines)

    def label_boxes(self, looks: Mapping[str, Look], size: float) -> None:
        """Writes into each box of a lane that has a name its label, or its beginning, if it fits.

        Where narrow boxes touch, so that they look like one, a letter may stand over some of a kind.
        """
        narrow = room_of("F", size) if self.style.together else 0.0
        for number, lane in enumerate(self.lanes):
            for box in self.merged(lane.boxes, narrow) if lane.name else ():
                look, rim = looks[box.kind], looks[box.kind].colour if looks[box.kind].hatch else ""
                text = next((text for text in _short_forms(box.label) if self.has_room(box, text, size)), "")
                middle = self.x((box.start + box.end) / 2)
                self.board.word(middle, self.y(number), text, size, colour=look.ink, around=rim)

    def size_of_labels(self, sizes: Sequence[float]) -> float:
        """The first of some sizes in which every box has room for its label; 0 if there is none, or they are many."""
        boxes = [box for lane in self.lanes for box in lane.boxes]
        if len(boxes) > MOST_LABELS:
            return 0
        highest = (self.style.box[1] - self.style.box[0]) * self.height * 72  # points
        sizes = [size for size in sizes if size <= highest]
        return next((size for size in sizes if all(self.has_room(box, box.label, size) for box in boxes)), 0)

    def kinds_without_room(self, size: float) -> set[str]:
        """The kinds of which some box has no room for its label: their hatches tell what they are."""
        boxes = (box for lane in self.lanes for box in self.merged(lane.boxes, self.style.together))
        return {box.kind for box in boxes if not self.has_room(box, _short_forms(box.label)[-1], size)}

    def has_room(self, box: Box, text: str, size: float) -> bool:
        """Whether a text fits into a box."""
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


def _named(lanes: Sequence[Lane], area: Rectangle) -> list[Lane]:
    """The same; where lanes are low, only so many have names as have room, and waits have no words."""
    every = math.ceil(_LEAST_APART * len(lanes) / (area[3] - area[1]))
    if every < 2:
        return list(lanes)
    lanes = [lane._replace(waits=[wait._replace(label="") for wait in lane.waits]) for lane in lanes]
    return [lane._replace(name="", remark="") if number % every else lane for number, lane in enumerate(lanes)]


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
    chart = Chart(board, area, _named(lanes, area), *times_shown, WITH_BANDS if has_bands else ALONE)
    looks = looks or looks_of(lanes)
    chart.draw_names()
    chart.rule()
    size = chart.size_of_labels(SIZES)
    shown = {kind: look.plain for kind, look in looks.items()} if size else looks
    key = {kind or unnamed: shown[kind] for kind in chart.draw_boxes(shown)}
    if size:
        chart.label_boxes(shown, size)
    key |= chart.draw_bands()
    entries = {name: partial(board.patch, look) for name, look in key.items()}
    if chart.draw_waits():
        entries["waits"] = lambda x, y: board.lines([(x, y, x + HANDLE, y)], MID, 1.2, style=":")
    bottom = chart.y(len(lanes), 0) + 0.13
    for x, words in zip((chart.left, chart.right), ends):
        board.word(x, bottom, words, colour=MID)
    board.legend(chart.left, bottom + 0.32, entries)
    return chart
