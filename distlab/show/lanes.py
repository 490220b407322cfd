"""Lanes: a scene drawn, one lane for each rank: boxes, bands of communication under them, arrows for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from distlab.machine.timeline import Arrow
from distlab.show.colours import COMMUNICATION, FAINT, INK, PALE, UNLABELLED, WHITE, Look, looks_of_spans, stem
from distlab.show.picture import CAPTION_WIDTH, INCHES, boxes, in_short, new_figure, wrap
from distlab.show.scene import RULE, Box, Scene

# In parts of a lane, downwards from its middle: a box, the band of communication under it; the rest is for arrows.
BOX, BAND = (-0.38, 0.2), (0.22, 0.38)
MIDDLE = sum(BOX) / 2
_LEFT, _RIGHT, _AXIS, _LINE = 0.72, 0.74, 0.3, 0.17  # inches: beside the lanes, of the axis, of a line of the legend
_IN_A_LINE, _MOST_STEMS, _LONGEST = 7, 10, 14  # of the legend: entries in a line, of spans, letters of an entry
_MOST_ARROWS = 1000
_NARROW = 0.035  # inches: what is narrower is put together with its like
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def draw(scene: Scene) -> Figure:
    """The figure: always of the same width, and as high as its ranks and its spans need."""
    notes = in_short([note for note in scene.notes if note != RULE])  # the text has what holds for every picture
    title = wrap(scene.clock, *filter(None, [scene.folding]), *notes, width=CAPTION_WIDTH)
    num_lanes = max(1, len(scene.shown))
    lane = 0.5 if num_lanes <= 4 else 0.4 if num_lanes <= 8 else 0.28 if num_lanes <= 16 else 0.18
    lanes = _Lanes(scene, lane)
    top, bottom = 0.16 + 0.14 * len(title), _AXIS + _LINE * ceil(min(len(lanes.looks) + 4, 14) / _IN_A_LINE) + 0.1
    height = top + num_lanes * lane + bottom
    figure = new_figure(height)
    figure.text(_LEFT / INCHES, 1 - 0.08 / height, "\n".join(title), va="top", color=INK)
    inside = (_LEFT / INCHES, bottom / height, 1 - (_LEFT + _RIGHT) / INCHES, num_lanes * lane / height)
    lanes.draw(figure.add_axes(inside))
    return figure


class _Lanes:
    """Lanes of ``inches`` high each."""

    axes: Axes

    def __init__(self, scene: Scene, inches: float):
        self.scene, self.inches = scene, inches
        self.number = {rank: number for number, rank in enumerate(scene.shown)}
        self.named = scene.shown if len(scene.shown) <= 32 else scene.shown[::4]  # the others get no letters at all
        self.boxes = {rank: scene.boxes(rank) for rank in scene.shown}
        self.looks = looks_of_spans(box.label for of_rank in self.boxes.values() for box in of_rank)
        self.looks[""] = UNLABELLED
        self.wall = scene.wall or 1.0
        self.inches_of_second = (INCHES - _LEFT - _RIGHT) / self.wall
        self.drop = _AXIS / (inches * max(1, len(self.number)))  # from the axes to the legend, in their height
        self.points = min(8.0, inches * 33)  # of letters in boxes
        self.handles: dict[str, object] = {}

    def draw(self, axes: Axes) -> None:
        """Draws everything, in the order of the legend."""
        self.axes = axes
        self._frame()
        self._boxes()
        self._bands()
        self._arrows()
        self._waits()
        if self.handles:
            labels = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in self.handles]
            place = {"loc": "upper left", "bbox_to_anchor": (0, -self.drop), "borderaxespad": 0, "borderpad": 0}
            style = {"ncols": _IN_A_LINE, "frameon": False, "handlelength": 1.8, "columnspacing": 1.6}
            axes.legend(self.handles.values(), labels, **place, **style)

    def _frame(self) -> None:
        axes, num_lanes = self.axes, max(1, len(self.number))
        second, unit = next(((1 / size, unit) for size, unit in _UNITS if self.wall >= size), (1e9, "ns"))
        axes.set_xlim(self.scene.begin, self.scene.begin + self.wall)
        axes.set_ylim(num_lanes - 0.5, -0.5)
        ticks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, self.wall * second)
        ticks = [tick for tick in ticks if 0 <= tick <= self.wall * second * (1 + 1e-9)]
        axes.set_xticks([self.scene.begin + tick / second for tick in ticks], [f"{tick:g} {unit}" for tick in ticks])
        axes.set_yticks([self.number[rank] + MIDDLE for rank in self.named], [f"rank {rank}" for rank in self.named])
        axes.tick_params(length=2, color=PALE, labelcolor=INK)
        axes.tick_params(axis="y", length=0)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        for rank in self.named:
            busy = f"{self.scene.shares[rank].busy / self.wall:.0%} busy" if self.scene.is_counted else "not counted"
            y = self.number[rank] + MIDDLE
            axes.text(1.008, y, busy, transform=axes.get_yaxis_transform(), va="center", color=INK)

    def _boxes(self) -> None:
        rectangles: defaultdict[str, list] = defaultdict(list)
        for rank, of_rank in self.boxes.items():
            for box in self._merged(of_rank, _NARROW / self.inches_of_second):
                rectangles[stem(box.label)].append(self._rectangle(rank, box, BOX))
            for box in self._merged(of_rank, self._width("F")):
                look = self.looks[stem(box.label)]
                self._label(rank, box, _short_forms(box.label), INK, look.colour if look.hatch else "")
        for number, (name, look) in enumerate(self.looks.items()):
            if name in rectangles:
                self._add(rectangles[name], look)
                if number < _MOST_STEMS or not name:
                    self.handles[name or "computes"] = _patch(look)

    def _bands(self) -> None:
        bands = [self._rectangle(rank, band, BAND) for rank in self.number for band in self._of(rank, "communication")]
        if bands:
            self._add(bands, COMMUNICATION)
            self.handles["communicates"] = _patch(COMMUNICATION)

    def _arrows(self) -> None:
        arrows = [arrow for arrow in self.scene.arrows if arrow.source in self.number and arrow.target in self.number]
        if len(arrows) > _MOST_ARROWS:
            words = f"{len(arrows):,} messages: too many for arrows"
            self.axes.text(1, -self.drop, words, transform=self.axes.transAxes, ha="right", va="top", color=PALE)
        elif arrows:
            head = 4 if self.inches > 0.2 else 3
            heads = {"headwidth": head, "headlength": head + 1, "headaxislength": head, "minlength": 0}
            scale = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "dots", "width": 0.9}
            self.axes.quiver(*zip(*map(self._arrow, arrows)), color=INK, zorder=4, **scale, **heads)
            self.handles["message"] = Line2D([], [], color=INK, linewidth=0.8, marker=">", markersize=4)

    def _arrow(self, arrow: Arrow) -> tuple[float, float, float, float]:
        """Where it begins, and how far it goes: from the edge of one lane's marks to that of the other's."""
        source, target = self.number[arrow.source], self.number[arrow.target]
        leaves, enters = (BAND[1], BOX[0]) if source < target else (BOX[0], BAND[1])
        return arrow.start, source + leaves, arrow.end - arrow.start, target + enters - source - leaves

    def _waits(self) -> None:
        lines = []
        for rank in self.number:
            for wait in self._of(rank, "wait"):
                lines.append([(time, self.number[rank] + MIDDLE) for time in (wait.start, wait.end)])
                self._label(rank, wait, [wait.label], PALE, WHITE)
        if lines:
            dotted = {"color": PALE, "linestyle": (0, (1, 2)), "linewidth": 1.2}
            self.axes.add_collection(LineCollection(lines, zorder=0.5, **dotted), autolim=False)
            self.handles["waits"] = Line2D([], [], **dotted)

    def _of(self, rank: int, kind: str) -> list[Box]:
        """Stretches of a rank's time, labelled by the message."""
        segments = [segment for segment in self.scene.segments[rank] if segment.kind == kind]
        stretches = [Box(s.start, s.end, s.message.kind if s.message else "", 0) for s in segments]
        return self._merged(stretches, _NARROW / self.inches_of_second / 2)

    def _merged(self, stretches: Sequence[Box], narrow: float) -> list[Box]:
        """The same, but of one stem those shorter than ``narrow`` seconds that nearly touch are one, named by it."""
        merged, was_narrow, apart = [], False, _NARROW / self.inches_of_second / 8
        for box in stretches:
            is_narrow = box.end - box.start < narrow
            is_next = merged and merged[-1].end >= box.start - apart and stem(merged[-1].label) == stem(box.label)
            if is_narrow and was_narrow and is_next:
                merged[-1] = Box(merged[-1].start, max(merged[-1].end, box.end), stem(box.label), 0)
            else:
                merged.append(box)
            was_narrow = is_narrow
        return merged

    def _rectangle(self, rank: int, box: Box, height: tuple[float, float]) -> tuple[float, float, float, float]:
        top, bottom = (self.number[rank] + part for part in height)
        return box.start, top, box.end, bottom

    def _add(self, rectangles: list, look: Look) -> None:
        """Adds rectangles, with white edges if they are wide enough to have any."""
        style = {"facecolor": look.colour, "edgecolor": WHITE, "hatch": look.hatch}
        wide = [box for box in rectangles if box[2] - box[0] > _NARROW / self.inches_of_second]
        narrow = [box for box in rectangles if box[2] - box[0] <= _NARROW / self.inches_of_second]
        self.axes.add_artist(boxes(wide, linewidth=0.7 if self.inches > 0.2 else 0.3, **style))
        self.axes.add_artist(boxes(narrow, linewidth=0, **style))

    def _label(self, rank: int, box: Box, texts: Sequence[str], colour: str, around: str) -> None:
        """Writes the first of some texts that fits, if any does; ``around`` is a colour that keeps lines off it."""
        text = next((text for text in texts if text and self._width(text) <= box.end - box.start), "")
        if text and rank in self.named:
            style = {"fontsize": self.points, "color": colour, "ha": "center", "va": "center_baseline", "zorder": 3}
            effects = [withStroke(linewidth=2.5, foreground=around)] if around else None
            x, y = (box.start + box.end) / 2, self.number[rank] + MIDDLE
            self.axes.text(x, y, text, path_effects=effects, **style)

    def _width(self, text: str) -> float:
        """Seconds that a text is wide, with a little room beside it."""
        return (0.6 * len(text) + 0.2) * self.points / 72 / self.inches_of_second


def _short_forms(label: str) -> list[str]:
    """What may stand in a box: the label, or its beginning; "F" says what "F12" is, "a" does not say "all-reduce"."""
    return [label, f"{label[:4]}…", f"{label[:2]}…"] if len(stem(label)) > 2 else [label, label[:1]]


def _patch(look: Look) -> Patch:
    return Patch(facecolor=look.colour, edgecolor=WHITE, hatch=look.hatch, linewidth=0)
