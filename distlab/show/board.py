"""Board: a drawing for a wall, quick to draw and readable from the last row, and the words that go with it."""

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
        self._letters: defaultdict[str, list[Word]] = defaultdict(list)
        self.word(MARGIN, 0.2, title, size=TITLE, align="left", weight="bold")

    def say(self, *sentences: str) -> None:
        """Adds to the words."""
        self.words += sentences

    def text(self) -> str:
        """The title, and what was said."""
        return "\n".join(wrap(self.title, *self.words))

    def figure(self) -> Figure:
        """Everything, drawn."""
        figure = new_figure(self.height)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        for mark in self._marks:
            mark(axes)
        for colour, words in self._letters.items():
            axes.add_artist(letters(words, colour))
        axes.set_xlim(0, INCHES)
        axes.set_ylim(self.height, 0)
        return figure

    def boxes(self, rectangles: Sequence[Rectangle], look: Look, edge: str = WHITE, width: float = 1.0) -> None:
        """Boxes of one look; narrow ones have no edge, which would cover them."""
        wide = [box for box in rectangles if box[2] - box[0] > 0.04]
        narrow = [box for box in rectangles if box[2] - box[0] <= 0.04]
        style = {"facecolor": look.colour, "edgecolor": edge, "hatch": look.hatch}
        if wide:
            self._marks.append(lambda axes: axes.add_artist(boxes(wide, linewidth=width, **style)))
        if narrow:
            self._marks.append(lambda axes: axes.add_artist(boxes(narrow, linewidth=0, **style)))

    def frames(self, rectangles: Sequence[Rectangle], colour: str = INK, width: float = 1.5, dotted=False) -> None:
        """Empty boxes."""
        style = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "linestyle": ":" if dotted else "-"}
        self._marks.append(lambda axes: axes.add_artist(boxes(rectangles, **style)))

    def word(
        self, x: float, y: float, text: str, size: float = LETTERS, align="center", colour=INK, around="", weight=""
    ) -> None:
        """A text, its middle at ``y``; ``around`` is the colour of a plate under it, which keeps hatches off it.

        ``align`` is "left", "center" or "right", ``weight`` "bold" or nothing.
        """
        word = Word(x, y, text, size, align, weight == "bold")
        self._letters[colour].append(word)
        if around:
            plate = Look(around, "")
            self.boxes([word.place()], plate, edge=around, width=2.5)

    def numbers(self, places: Sequence[tuple[float, float, str]], size: float = LETTERS, colour: str = INK) -> None:
        """Short bold words, each as (x, y, word) with its middle there, on white rims.

        A rim keeps hatches off a word and covers less of a narrow box than a plate.
        """
        words = [Word(x, y, word, size, "center", True) for x, y, word in places]
        rim = {"edgecolor": WHITE, "linewidth": 2.5, "joinstyle": "round", "zorder": 3.9}
        self._marks.append(lambda axes: axes.add_artist(letters(words, WHITE)).set(**rim))
        self._letters[colour] += words

    def arrows(self, arrows: Sequence[Rectangle], colour: str = INK, width: float = 1.5) -> None:
        """Arrows from (x0, y0) to (x1, y1)."""
        if not arrows:
            return
        x0, y0, x1, y1 = np.array(arrows).T
        scale = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "dots", "minlength": 0}
        style = {"color": colour, "width": width, "headwidth": 6, "headlength": 7, "headaxislength": 6, "zorder": 3}
        self._marks.append(lambda axes: axes.quiver(x0, y0, x1 - x0, y1 - y0, **scale, **style))

    def lines(self, lines: Sequence[Rectangle], colour: str = FAINT, width: float = 1.0, dashed: bool = False) -> None:
        """Lines from (x0, y0) to (x1, y1)."""
        ends = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in lines]
        style = {"colors": colour, "linewidths": width, "linestyles": "--" if dashed else "-"}
        self._marks.append(lambda axes: axes.add_collection(LineCollection(ends, **style), autolim=False))

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
