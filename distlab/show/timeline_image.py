"""A timeline as an image: lanes with arrows for messages and dotted lines for waits, a time axis and a legend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from matplotlib.ticker import MaxNLocator

from distlab.machine.timeline import Arrow, Timeline
from distlab.show.board import HANDLE, LINE, Board
from distlab.show.chart import UNNAMED, Chart, Style
from distlab.show.lanes import Lane, folding, lanes_of, looks_of
from distlab.show.look import LETTERS, MID, RULE, WIDTH, Look
from distlab.show.marks import Rectangle
from distlab.show.measured import RULE as RULE_OF_MEASURING
from distlab.show.words import IN_A_PICTURE, in_short, wrap

_LEFT, _RIGHT, _AXIS = 0.88, 1.2, 0.36  # inches: beside the lanes, of the axis
_MOST_KINDS, _LONGEST = 10, 16  # of the legend: boxes, letters of an entry
_MOST_ARROWS = 1000
_NARROW = 0.035  # inches: what is narrower touches the next, and is put together with its like
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def timeline_image(timeline: Timeline) -> Board:
    """The board: as high as its ranks and its spans need."""
    lanes, notes = lanes_of(timeline), in_short([note for note in timeline.notes if note != RULE_OF_MEASURING])
    words = filter(None, [timeline.title, folding(lanes, len(timeline.spans)), *notes])
    caption = wrap(*words, width=IN_A_PICTURE)
    num_lanes = max(1, len(lanes))
    lane = 0.52 if num_lanes <= 4 else 0.42 if num_lanes <= 8 else 0.3 if num_lanes <= 16 else 0.18
    top = 0.12 + LINE * len(caption)
    board = Board("", top + num_lanes * lane)
    board.caption(caption)
    image = _Image(board, (_LEFT, top, WIDTH - _RIGHT, board.height), lanes, timeline)
    image.draw(looks_of(lanes.values()))
    return board


def _named(lanes: Sequence[Lane]) -> list[Lane]:
    """The same; of many, most have no letters."""
    every = 1 if len(lanes) <= 16 else 2 if len(lanes) <= 32 else 4
    return [lane._replace(name="", remark="") if number % every else lane for number, lane in enumerate(lanes)]


class _Image:
    """The lanes of a timeline in an area of a board; ``key`` has the legend's words, and how to draw each."""

    def __init__(self, board: Board, area: Rectangle, lanes: Mapping[int, Lane], timeline: Timeline):
        height = (area[3] - area[1]) / max(1, len(lanes))
        style = Style((0.12, 0.70), (0.74, 0.9), gap=0.08, narrow=_NARROW, together=_NARROW, least=0.0)
        self.chart = Chart(board, area, _named(list(lanes.values())), timeline.begin, timeline.end, style)
        self.board, self.timeline, self.bottom = board, timeline, area[3]
        self.number = {rank: number for number, rank in enumerate(lanes)}
        self.size = min(LETTERS, height * 40)  # points of letters in boxes
        self.head = 6 if height > 0.2 else 4  # of an arrow, in its widths
        self.key: dict[str, Callable[[float, float], None]] = {}

    def draw(self, looks: Mapping[str, Look]) -> None:
        """Draws everything, in the order of the legend."""
        self.chart.draw_names()
        self._axis()
        self._boxes(looks)
        self.key |= {kind: partial(self.board.patch, look) for kind, look in self.chart.draw_bands(_NARROW / 2).items()}
        self._arrows()
        if self.chart.draw_waits(_NARROW / 2):
            self.key["waits"] = lambda x, y: self.board.lines([(x, y, x + HANDLE, y)], MID, 1.2, style=":")
        self._legend()

    def _axis(self) -> None:
        chart, wall = self.chart, self.timeline.wall or 1.0
        second, unit = next(((1 / size, unit) for size, unit in _UNITS if wall >= size), (1e9, "ns"))
        ticks = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(0, wall * second)
        places = {chart.x(self.timeline.begin + tick / second): f"{tick:g} {unit}" for tick in ticks}
        places = {x: words for x, words in places.items() if chart.left <= x <= chart.right + 1e-6}
        self.board.lines([(chart.left, self.bottom, chart.right, self.bottom)], RULE, 0.8)
        self.board.lines([(x, self.bottom, x, self.bottom + 0.05) for x in places], RULE, 0.8)
        for x, words in places.items():
            self.board.word(x, self.bottom + 0.18, words, colour=MID)

    def _boxes(self, looks: Mapping[str, Look]) -> None:
        unlabelled = self.chart.kinds_without_room(self.size)
        shown = {kind: look if kind in unlabelled else look.plain for kind, look in looks.items()}
        there = self.chart.draw_boxes(shown)
        self.chart.label_boxes(shown, self.size)
        for number, kind in enumerate(shown):
            if kind in there and (number < _MOST_KINDS or not kind):
                self.key[kind or UNNAMED] = partial(self.board.patch, shown[kind])

    def _arrows(self) -> None:
        arrows = [arrow for arrow in self.timeline.arrows if {arrow.source, arrow.target} <= self.number.keys()]
        if len(arrows) > _MOST_ARROWS:
            self.key[f"{len(arrows):,} messages: too many for arrows"] = lambda x, y: None
        elif arrows:
            self.board.arrows([self._arrow(arrow) for arrow in arrows], width=1.0, head=self.head)
            self.key["message"] = lambda x, y: self.board.arrows([(x, y, x + HANDLE, y)], width=1.0, head=6)

    def _arrow(self, arrow: Arrow) -> Rectangle:
        """From the edge of one lane's marks to that of the other's."""
        chart, source, target = self.chart, self.number[arrow.source], self.number[arrow.target]
        top, bottom = chart.style.box[0], chart.style.band[1]
        leaves, enters = (bottom, top) if source < target else (top, bottom)
        return chart.x(arrow.start), chart.y(source, leaves), chart.x(arrow.end), chart.y(target, enters)

    def _legend(self) -> None:
        """Under the axis."""
        entries = {self._short(name): draw for name, draw in self.key.items()}
        self.board.height = 0.2 + self.board.legend(self.chart.left, self.bottom + _AXIS + 0.14, entries)

    @staticmethod
    def _short(name: str) -> str:
        return name if len(name) <= _LONGEST or " messages: " in name else f"{name[: _LONGEST - 1]}…"
