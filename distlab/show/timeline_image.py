"""A timeline as an image: lanes with arrows for messages and dotted lines for waits, a time axis and a legend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil

import numpy as np
from matplotlib.ticker import MaxNLocator

from distlab.machine.timeline import Arrow, Timeline
from distlab.show.board import Board, Rectangle
from distlab.show.chart import UNNAMED, Chart, Style
from distlab.show.colours import COMMUNICATION, FAINT, INK, PALE, WHITE, Look
from distlab.show.lanes import Lane, folding, lanes_of, looks_of
from distlab.show.letters import width_of
from distlab.show.measured import RULE
from distlab.show.picture import CAPTION_WIDTH, INCHES, in_short, wrap

_LEFT, _RIGHT, _AXIS, _LINE = 0.72, 0.74, 0.3, 0.17  # inches: beside the lanes, of the axis, of a line of the legend
_IN_A_LINE, _MOST_KINDS, _LONGEST = 7, 10, 14  # of the legend: entries in a line, of boxes, letters of an entry
_MOST_ARROWS = 1000
_SIZE = 8.0  # points of letters
_NARROW = 0.035  # inches: what is narrower has no edge, and is put together with its like
_KEY, _HANDLE = _AXIS + 0.05, 0.2  # inches: from the lanes to the legend, of what stands before a name
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def timeline_image(timeline: Timeline) -> Board:
    """The board: as high as its ranks and its spans need."""
    lanes, notes = lanes_of(timeline), in_short([note for note in timeline.notes if note != RULE])
    words = filter(None, [timeline.title, folding(lanes, len(timeline.spans)), *notes])
    caption = wrap(*words, width=CAPTION_WIDTH)
    looks = looks_of(lanes.values())
    num_lanes = max(1, len(lanes))
    lane = 0.5 if num_lanes <= 4 else 0.4 if num_lanes <= 8 else 0.28 if num_lanes <= 16 else 0.18
    top = 0.16 + 0.14 * len(caption)
    bottom = top + num_lanes * lane
    board = Board("", bottom + _AXIS + _LINE * ceil(min(len(looks) + 4, 14) / _IN_A_LINE) + 0.1)
    board.word(_LEFT, 0.07 + 0.067 * len(caption), "\n".join(caption), _SIZE, "left")
    _Image(board, (_LEFT, top, INCHES - _RIGHT, bottom), lanes, timeline).draw(looks)
    return board


def _named(lanes: Sequence[Lane]) -> list[Lane]:
    """The same; of many, most have no letters."""
    every = 1 if len(lanes) <= 32 else 4
    return [lane._replace(name="", remark="") if number % every else lane for number, lane in enumerate(lanes)]


class _Image:
    """The lanes of a timeline in an area of a board; ``key`` has the legend's words, and how to draw each."""

    def __init__(self, board: Board, area: Rectangle, lanes: Mapping[int, Lane], timeline: Timeline):
        height = (area[3] - area[1]) / max(1, len(lanes))
        style = Style((0.12, 0.70), (0.72, 0.88), _SIZE, 0.055, 0.7 if height > 0.2 else 0.3, _NARROW, _NARROW, 0.0)
        self.chart = Chart(board, area, _named(list(lanes.values())), timeline.begin, timeline.end, style)
        self.board, self.timeline, self.bottom = board, timeline, area[3]
        self.number = {rank: number for number, rank in enumerate(lanes)}
        self.size = min(_SIZE, height * 33)  # points of letters in boxes
        self.head = 4 if height > 0.2 else 3  # of an arrow, in its widths
        self.key: dict[str, Callable[[float, float], None]] = {}

    def draw(self, looks: Mapping[str, Look]) -> None:
        """Draws everything, in the order of the legend."""
        self.chart.draw_names()
        self._axis()
        self._boxes(looks)
        self._bands()
        self._arrows()
        self._waits()
        self._legend()

    def _axis(self) -> None:
        chart, wall = self.chart, self.timeline.wall or 1.0
        second, unit = next(((1 / size, unit) for size, unit in _UNITS if wall >= size), (1e9, "ns"))
        ticks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, wall * second)
        places = {chart.x(self.timeline.begin + tick / second): f"{tick:g} {unit}" for tick in ticks}
        places = {x: words for x, words in places.items() if chart.left <= x <= chart.right + 1e-6}
        sides = [(chart.left, chart.top, chart.left, self.bottom), (chart.left, self.bottom, chart.right, self.bottom)]
        self.board.lines(sides, FAINT, 0.8)
        self.board.lines([(x, self.bottom, x, self.bottom + 0.028) for x in places], PALE, 0.8)
        for x, words in places.items():
            self.board.word(x, self.bottom + 0.125, words, _SIZE)

    def _boxes(self, looks: Mapping[str, Look]) -> None:
        there = self.chart.draw_boxes(looks)
        self.chart.label_boxes(looks, self.size)
        for number, kind in enumerate(looks):
            if kind in there and (number < _MOST_KINDS or not kind):
                self.key[kind or UNNAMED] = partial(self._patch, looks[kind])

    def _bands(self) -> None:
        bands = [self.chart.merged(lane.messages, _NARROW / 2) for lane in self.chart.lanes]
        self.chart.draw_bands([[(band.start, band.end) for band in of_lane] for of_lane in bands])
        if any(bands):
            self.key["communicates"] = partial(self._patch, COMMUNICATION)

    def _arrows(self) -> None:
        arrows = [arrow for arrow in self.timeline.arrows if {arrow.source, arrow.target} <= self.number.keys()]
        if len(arrows) > _MOST_ARROWS:
            words = f"{len(arrows):,} messages: too many for arrows"
            self.board.word(self.chart.right, self.bottom + _KEY, words, _SIZE, "right", PALE)
        elif arrows:
            self.board.arrows([self._arrow(arrow) for arrow in arrows], width=0.9, head=self.head)
            self.key["message"] = self._message

    def _arrow(self, arrow: Arrow) -> Rectangle:
        """From the edge of one lane's marks to that of the other's."""
        chart, source, target = self.chart, self.number[arrow.source], self.number[arrow.target]
        top, bottom = chart.style.box[0], chart.style.band[1]
        leaves, enters = (bottom, top) if source < target else (top, bottom)
        return chart.x(arrow.start), chart.y(source, leaves), chart.x(arrow.end), chart.y(target, enters)

    def _waits(self) -> None:
        lines: list[Rectangle] = []
        for number, lane in enumerate(self.chart.lanes):
            waits, y = self.chart.merged(lane.waits, _NARROW / 2), self.chart.y(number)
            lines += [(self.chart.x(wait.start), y, self.chart.x(wait.end), y) for wait in waits]
            for wait in waits if lane.name else ():
                self.chart.label(number, wait, [wait.label], self.size, PALE, WHITE)
        if lines:
            self._dots(lines)
            self.key["waits"] = lambda x, y: self._dots([(x, y, x + _HANDLE, y)])

    def _dots(self, lines: Sequence[Rectangle]) -> None:
        self.board.lines(lines, PALE, 1.2, style=":", under=True)

    def _legend(self) -> None:
        """Under the axis, in columns, from the top to the bottom and from left to right."""
        x, names = self.chart.left, list(self.key)
        for column in np.array_split(names, min(_IN_A_LINE, len(names)) or 1):
            words = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in column]
            for line, (name, word) in enumerate(zip(column, words)):
                y = self.bottom + _KEY + _LINE * line
                self.key[name](x, y)
                self.board.word(x + _HANDLE + 0.09, y, word, _SIZE, "left")
            x += _HANDLE + 0.27 + max((width_of(word, _SIZE) for word in words), default=0)

    def _patch(self, look: Look, x: float, y: float) -> None:
        self.board.boxes([(x, y - 0.039, x + _HANDLE, y + 0.039)], look, width=0)

    def _message(self, x: float, y: float) -> None:
        self.board.lines([(x, y, x + _HANDLE, y)], INK, 0.8)
        self.board.arrows([(x, y, x + 0.65 * _HANDLE, y)], width=0.9, head=6)
