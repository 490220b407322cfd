"""blocks(): which rank holds which block of which matrix, and where the parts of a sum meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from distlab.show.colours import FAINT, INK, PALE, SERIES, WHITE
from distlab.show.picture import INCHES, Picture, new_figure

_TOP, _BOTTOM, _MARGIN = 0.42, 0.5, 0.12  # inches: for the title, for the shapes' names, at the sides
_GAP = 0.16  # inches between two things
_SAYS = {
    "Σ": ["  here the parts of every sum meet: an all-reduce"],
    "f": ["  here the parts of the gradient meet on the way back: an all-reduce"],
}


@dataclass(frozen=True)
class Matrix:
    """A matrix as it lies on the ranks.

    ``rows`` and ``columns`` say its shape in words. ``cut`` is "columns", "rows" or "" for whole on every rank;
    ``owners`` are the ranks of its stripes in order, ``labels`` words over (columns) or beside (rows) equal parts of
    them. ``size`` is the drawing's height and width in inches. Raises ValueError for another cut.
    """

    name: str
    rows: str
    columns: str
    cut: str = ""
    owners: Sequence[int] = ()
    labels: Sequence[str] = ()
    size: tuple[float, float] = (0.9, 0.9)

    def __post_init__(self):
        if self.cut not in ("", "columns", "rows") or bool(self.cut) != bool(self.owners):
            raise ValueError(f'cut must be "columns" or "rows" with owners, or "" without, not {self.cut!r}')

    def words(self) -> str:
        """Its name and shape, and who holds what."""
        shape = f"{self.name} ({self.rows} × {self.columns})"
        if not self.cut:
            return f"{shape:24} whole on every rank"
        together = len(self.owners) // (len(self.labels) or 1)
        parts = [self.owners[i : i + together] for i in range(0, len(self.owners), together)]
        stripes = ["|".join(map(str, part)) for part in parts]
        named = [f"{label} {stripe}" for label, stripe in zip(self.labels, stripes)] or stripes
        return f"{shape:24} {self.cut} of ranks |{'|  |'.join(named)}|"


def blocks(title: str, *things: Matrix | str) -> BlocksPicture:
    """Draws matrices, cut as they lie on the ranks, in a row with the signs between them ("×", "GELU", "Σ").

    A "Σ" marks where every rank holds a part of every sum, and they meet; an "f" where that happens on the way back.
    """
    return BlocksPicture(title, things)


@dataclass(frozen=True, repr=False)
class BlocksPicture(Picture):
    """Stripes in the colour, hatch and number of the rank that holds them; grey for what every rank holds whole."""

    title: str
    things: Sequence[Matrix | str]

    def text(self) -> str:
        """A line for each matrix and each sign, in order."""
        lines = [thing.words() if isinstance(thing, Matrix) else self._sign(thing) for thing in self.things]
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    @staticmethod
    def _sign(sign: str) -> str:
        return " ".join([*sign.split("\n"), *_SAYS.get(sign, ())])

    def figure(self) -> Figure:
        """The row of matrices."""
        tallest = max((thing.size[0] for thing in self.things if isinstance(thing, Matrix)), default=1.0)
        height = _TOP + tallest + _BOTTOM
        figure = new_figure(height)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, INCHES)
        axes.set_ylim(0, height)
        axes.axis("off")
        axes.text(_MARGIN, height - 0.08, self.title, va="top", color=INK)
        widths = [thing.size[1] if isinstance(thing, Matrix) else _width_of(thing) for thing in self.things]
        gap = min(_GAP, max(0.0, INCHES - 2 * _MARGIN - sum(widths)) / max(1, len(widths) - 1))
        left, middle = _MARGIN, _BOTTOM + tallest / 2
        for thing, width in zip(self.things, widths):
            if isinstance(thing, Matrix):
                _draw(axes, thing, left, middle)
            else:
                axes.text(left + width / 2, middle, thing, ha="center", va="center", fontsize=_font(thing), color=INK)
            left += width + gap
        return figure


def _width_of(sign: str) -> float:
    return 0.012 * _font(sign) * max(map(len, sign.split("\n"))) * 0.72


def _font(sign: str) -> int:
    return 14 if len(sign) < 3 else 8


def _draw(axes: Axes, matrix: Matrix, left: float, middle: float) -> None:
    height, width = matrix.size
    bottom = middle - height / 2
    if not matrix.cut:
        axes.add_patch(Rectangle((left, bottom), width, height, facecolor=FAINT, edgecolor=PALE))
        _word(axes, left + width / 2, middle, "all")
    for number, owner in enumerate(matrix.owners):
        part, look = 1 / len(matrix.owners), SERIES[owner % len(SERIES)]
        if matrix.cut == "columns":
            corner, size = (left + number * part * width, bottom), (part * width, height)
        else:
            corner, size = (left, bottom + (1 - (number + 1) * part) * height), (width, part * height)
        style = {"facecolor": look.colour, "edgecolor": WHITE, "hatch": look.hatch, "linewidth": 1.2}
        axes.add_patch(Rectangle(corner, *size, **style))
        _word(axes, corner[0] + size[0] / 2, corner[1] + size[1] / 2, str(owner))
    for number, label in enumerate(matrix.labels):
        along = (number + 0.5) / len(matrix.labels)
        if matrix.cut == "columns":
            axes.text(left + along * width, bottom + height + 0.03, label, ha="center", va="bottom", color=INK)
        else:
            axes.text(left - 0.04, bottom + (1 - along) * height, label, ha="right", va="center", color=INK)
    words = f"{matrix.name}\n{matrix.rows} × {matrix.columns}"
    axes.text(left + width / 2, bottom - 0.06, words, ha="center", va="top", color=INK, linespacing=1.3)


def _word(axes: Axes, x: float, y: float, word: str) -> None:
    around = [withStroke(linewidth=3, foreground=WHITE)]
    axes.text(x, y, word, ha="center", va="center", color=INK, weight="bold", path_effects=around)
