"""Board: a drawing in inches, quick to draw and readable from the last row, and the words that go with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from distlab.show.colours import FAINT, INK, WHITE, Look
from distlab.show.letters import Word, letters, width_of
from distlab.show.picture import INCHES, Picture, boxes, new_figure, wrap

MARGIN = 0.12  # inches
LETTERS = 11  # points: 15 of 720 pixels
TITLE = 13
_PITCH = 1.2 / 72  # inches from line to line, for each point of its size

Rectangle = tuple[float, float, float, float]  # x0, y0, x1, y1


class Board(Picture):
    """Everything is placed in inches from the top left corner of a figure ``INCHES`` wide and ``height`` high.

    It has no axes with ticks, since these alone take longer to draw than all the rest. ``say`` adds to the words that
    stand beside it; :meth:`text` is the title and these words.
    """

    def __init__(self, title: str, height: float):
        self.title, self.height = title, height
        self.words: list[str] = []
        self._marks: list[Callable[[Axes], object]] = []
        self._letters: defaultdict[tuple[str, str], list[Word]] = defaultdict(list)
        self.word(MARGIN, 0.2, title, size=TITLE, align="left", weight="bold")

    def say(self, *sentences: str) -> None:
        """Adds to the words."""
        self.words += sentences

    def text(self) -> str:
        """The title, and what was said."""
        return "\n".join(wrap(self.title, *self.words))

    @property
    def written(self) -> list[str]:
        """All texts on it."""
        return [word.text for words in self._letters.values() for word in words]

    def figure(self) -> Figure:
        """Everything, drawn."""
        figure = new_figure(self.height)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        for mark in self._marks:
            mark(axes)
        rim = {"linewidth": 2.5, "joinstyle": "round", "zorder": 2.9}
        for (colour, around), words in self._letters.items():
            if around:
                axes.add_artist(letters(words, around)).set(edgecolor=around, **rim)
            axes.add_artist(letters(words, colour))
        axes.set_xlim(0, INCHES)
        axes.set_ylim(self.height, 0)
        return figure

    def boxes(
        self, rectangles: Sequence[Rectangle], look: Look, edge: str = WHITE, width: float = 1.0, narrow: float = 0.04
    ) -> None:
        """Boxes of one look; those narrower than ``narrow`` inches have no edge, which would cover them."""
        style = {"facecolor": look.colour, "edgecolor": edge, "hatch": look.hatch}
        for is_wide, edges in (True, width), (False, 0):
            if some := [box for box in rectangles if (box[2] - box[0] > narrow) == is_wide]:
                self._add(some, linewidth=edges, **style)

    def frames(self, rectangles: Sequence[Rectangle], colour: str = INK, width: float = 1.5, dotted=False) -> None:
        """Empty boxes."""
        style = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "linestyle": ":" if dotted else "-"}
        self._add(rectangles, **style)

    def _add(self, rectangles: Sequence[Rectangle], **style) -> None:
        self._marks.append(lambda axes: axes.add_artist(boxes(rectangles, **style)))

    def word(
        self, x: float, y: float, text: str, size: float = LETTERS, align="center", colour=INK, around="", weight=""
    ) -> None:
        """A text, the middle of its lines at ``y``; ``around`` is the colour of a rim, which keeps hatches off it.

        ``align`` is "left", "center" or "right", ``weight`` "bold" or nothing.
        """
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            middle = y + (number - (len(lines) - 1) / 2) * _PITCH * size
            self._letters[colour, around].append(Word(x, middle, line, size, align, weight == "bold"))

    def numbers(self, places: Sequence[tuple[float, float, str]], size: float = LETTERS, colour: str = INK) -> None:
        """Short bold words, each as (x, y, word) with its middle there, on white rims."""
        for x, y, word in places:
            self.word(x, y, word, size, colour=colour, around=WHITE, weight="bold")

    def arrows(self, arrows: Sequence[Rectangle], colour: str = INK, width: float = 1.5, head: float = 6.0) -> None:
        """Arrows from (x0, y0) to (x1, y1), ``width`` dots wide, their heads so many times as wide."""
        if not arrows:
            return
        x0, y0, x1, y1 = np.array(arrows).T
        scale = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "dots", "minlength": 0}
        heads = {"headwidth": head, "headlength": head + 1, "headaxislength": head}
        style = {"color": colour, "width": width, "zorder": 3}
        self._marks.append(lambda axes: axes.quiver(x0, y0, x1 - x0, y1 - y0, **scale, **heads, **style))

    def lines(
        self, lines: Sequence[Rectangle], colour: str = FAINT, width: float = 1.0, style="-", under=False
    ) -> None:
        """Lines from (x0, y0) to (x1, y1), of matplotlib's ``style`` ("--", ":"), over boxes or ``under`` them."""
        ends = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in lines]
        look = {"colors": colour, "linewidths": width, "linestyles": style, "zorder": 0.5 if under else 2}
        self._marks.append(lambda axes: axes.add_collection(LineCollection(ends, **look), autolim=False))

    def image(self, pixels: np.ndarray, rectangle: Rectangle) -> None:
        """A small picture of values from 0 (white) to 1 (ink)."""
        x0, y0, x1, y1 = rectangle
        style = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
        self._marks.append(lambda axes: axes.imshow(pixels, extent=(x0, x1, y1, y0), **style))

    def key(self, x: float, y: float, looks: dict[str, Look]) -> None:
        """What each look means, in a row that begins at ``x``."""
        for name, look in looks.items():
            self.boxes([(x, y - 0.09, x + 0.3, y + 0.09)], look)
            self.word(x + 0.38, y, name, align="left")
            x += 0.7 + width_of(name)
