"""Board: a drawing in inches, readable from the last row, and the words that go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from distlab.show.letters import width_of
from distlab.show.look import LETTERS, MID, RULE, TEXT, TITLE, WIDTH, Look
from distlab.show.marks import Area, Arrows, Boxes, Frames, Lines, Mark, Pixels, Point, Rectangle, Word
from distlab.show.picture import Picture
from distlab.show.words import wrap

MARGIN = 0.12  # inches
LINE = 0.26  # inches from line to line of a caption
HANDLE = 0.26  # inches of what stands before a name in a legend
_PITCH = 1.2 / 72  # inches from line to line, for each point of its size


class Board(Picture):
    """Everything is placed in inches from the top left corner of a drawing ``WIDTH`` wide and ``height`` high.

    ``say`` adds to the words that stand beside it; :meth:`text` is the title and these words. It has no ground: words
    beside boxes are TEXT, which a page can colour, or MID.
    """

    def __init__(self, title: str, height: float):
        self.title, self.height = title, height
        self.words: list[str] = []
        self._marks: list[Mark] = []
        self.word(MARGIN, 0.2, title, size=TITLE, align="left", weight="bold")

    def say(self, *sentences: str) -> None:
        """Adds to the words."""
        self.words += sentences

    @property
    def marks(self) -> list[Mark]:
        """All that is on it, what lies below first."""
        return sorted(self._marks, key=lambda mark: mark.layer)

    @property
    def written(self) -> list[str]:
        """All texts on it."""
        return [mark.text for mark in self._marks if isinstance(mark, Word)]

    def boxes(self, rectangles: Sequence[Rectangle], look: Look, gap: float = 0.012, narrow: float = 0.04) -> None:
        """Boxes of one look, ``gap`` inches apart where they touch; those narrower than ``narrow`` are not."""
        for is_wide, free in (True, gap), (False, 0.0):
            if some := [box for box in rectangles if (box[2] - box[0] > narrow) == is_wide]:
                self._marks.append(Boxes(some, look, free))

    def area(self, points: Sequence[Point], look: Look) -> None:
        """A polygon."""
        self._marks.append(Area(points, look))

    def frames(self, rectangles: Sequence[Rectangle], colour: str = TEXT, width: float = 1.5, dotted=False) -> None:
        """Empty boxes."""
        self._marks.append(Frames(rectangles, colour, width, ":" if dotted else "-"))

    def word(
        self, x: float, y: float, text: str, size: float = LETTERS, align="center", colour=TEXT, around="", weight=""
    ) -> None:
        """A text, the middle of its lines at ``y``; ``around`` is the colour of a rim, which keeps hatches off it.

        ``align`` is "left", "center" or "right", ``weight`` "bold" or nothing. On a box its colour is ``look.ink``.
        """
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            middle = y + (number - (len(lines) - 1) / 2) * _PITCH * size
            self._marks.append(Word(x, middle, line, size, align, weight == "bold", colour, around))

    def caption(self, lines: Sequence[str]) -> None:
        """Lines of words over all else."""
        for number, line in enumerate(lines):
            self.word(MARGIN, 0.16 + LINE * number, line, align="left")

    def numbers(
        self, places: Sequence[tuple[float, float, str]], look: Look | None = None, size=LETTERS, colour=TEXT
    ) -> None:
        """Short bold words, each as (x, y, word) with its middle there, of a ``colour`` or on boxes of a ``look``."""
        rim = look.colour if look and look.hatch else ""
        for x, y, word in places:
            self.word(x, y, word, size, colour=look.ink if look else colour, around=rim, weight="bold")

    def arrows(self, arrows: Sequence[Rectangle], colour: str = MID, width: float = 1.5, head: float = 5.0) -> None:
        """Arrows from (x0, y0) to (x1, y1), ``width`` points wide, their heads so many times as wide."""
        if arrows:
            self._marks.append(Arrows(arrows, colour, width, head))

    def lines(self, lines: Sequence[Rectangle], colour: str = RULE, width: float = 1.0, style="-", under=False) -> None:
        """Lines from (x0, y0) to (x1, y1), of ``style`` "-", "--" or ":", over boxes or ``under`` them."""
        ends = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in lines]
        if ends:
            self._marks.append(Lines(ends, colour, width, style, 0 if under else 2))

    def image(self, values: np.ndarray, rectangle: Rectangle) -> None:
        """A small picture of values from 0 (white) to 1 (black)."""
        self._marks.append(Pixels(values, rectangle))

    def key(self, x: float, y: float, looks: Mapping[str, Look]) -> float:
        """What each look means; see :meth:`legend`."""
        return self.legend(x, y, {name: partial(self.patch, look) for name, look in looks.items()})

    def legend(self, left: float, y: float, entries: Mapping[str, Callable[[float, float], None]]) -> float:
        """Names from ``left`` on, in as many lines as it takes, each behind what is drawn for it; returns the last y.

        An entry draws something HANDLE wide from (x, y) on.
        """
        x = left
        for name, draw in entries.items():
            width = HANDLE + 0.08 + width_of(name)
            if x > left and x + width > WIDTH - MARGIN:
                x, y = left, y + LINE
            draw(x, y)
            self.word(x + HANDLE + 0.08, y, name, align="left")
            x += width + 0.22
        return y

    def patch(self, look: Look, x: float, y: float) -> None:
        """Draws what stands for a look in a legend."""
        self.boxes([(x, y - 0.08, x + HANDLE, y + 0.08)], look)

    def text(self) -> str:
        """The title, and what was said."""
        return "\n".join(wrap(self.title, *self.words))

    def board(self) -> Board:
        """Itself."""
        return self
