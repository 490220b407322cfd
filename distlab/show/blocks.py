"""blocks(): which rank holds which block of which matrix, and where the parts of a sum meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distlab.show.board import MARGIN, Board
from distlab.show.letters import width_of
from distlab.show.look import FAINT, LETTERS, RULE, SERIES, WIDTH, Look
from distlab.show.marks import Rectangle
from distlab.show.picture import Picture

_TOP, _BOTTOM = 0.72, 0.62  # inches: for the title, for the shapes' names
_GAP = 0.22  # inches between two things
_WHOLE = Look(FAINT, "")
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

    def board(self) -> Board:
        """The row of matrices."""
        tallest = max((thing.size[0] for thing in self.things if isinstance(thing, Matrix)), default=1.0)
        board = Board("", _TOP + tallest + _BOTTOM)
        board.word(MARGIN, 0.16, self.title, align="left")
        widths = [thing.size[1] if isinstance(thing, Matrix) else _width_of(thing) for thing in self.things]
        gap = min(_GAP, max(0.0, WIDTH - 2 * MARGIN - sum(widths)) / max(1, len(widths) - 1))
        left, middle = MARGIN, _TOP + tallest / 2
        for thing, width in zip(self.things, widths):
            if isinstance(thing, Matrix):
                _draw(board, thing, left, middle)
            else:
                board.word(left + width / 2, middle, thing, _font(thing))
            left += width + gap
        return board


def _width_of(sign: str) -> float:
    return max(width_of(line, _font(sign)) for line in sign.split("\n"))


def _font(sign: str) -> float:
    return 22.0 if len(sign) < 3 else LETTERS


def _draw(board: Board, matrix: Matrix, left: float, middle: float) -> None:
    height, width = matrix.size
    top, bottom = middle - height / 2, middle + height / 2
    across = len(matrix.owners) if matrix.cut == "columns" else 1
    draw_cuts(
        board, [Cut((left, top, left + width, bottom), matrix.owners, across)], {LETTERS: 0.24, 11.0: 0.0}, edge=RULE
    )
    for number, label in enumerate(matrix.labels):
        along = (number + 0.5) / len(matrix.labels)
        if matrix.cut == "columns":
            board.word(left + along * width, top - 0.14, label)
        else:
            board.word(left - 0.04, top + along * height, label, align="right")
    board.word(left + width / 2, bottom + 0.3, f"{matrix.name}\n{matrix.rows} × {matrix.columns}")


@dataclass(frozen=True)
class Cut:
    """Where a matrix stands on a board, and the owners of its equal pieces, so many ``across``; none: it is whole.

    ``rim`` is what stays free around a piece, in inches.
    """

    area: Rectangle
    owners: Sequence[int] = ()
    across: int = 1
    rim: float = 0.0

    def pieces(self) -> Iterator[tuple[int | None, Rectangle]]:
        """Each piece with its owner, None for all ranks."""
        x0, y0, x1, y1 = self.area
        owners = self.owners or (None,)
        wide, high = (x1 - x0) / self.across, (y1 - y0) / (len(owners) // self.across)
        for number, owner in enumerate(owners):
            left, top = x0 + number % self.across * wide, y0 + number // self.across * high
            yield owner, (left + self.rim, top + self.rim, left + wide - self.rim, top + high - self.rim)


def draw_cuts(board: Board, cuts: Sequence[Cut], sizes: Mapping[float, float], edge: str = "") -> None:
    """Draws all pieces, one owner after the other; what is whole has an ``edge`` of that colour.

    Their owners stand in them, in the first of ``sizes``, in points, for which a piece has so many inches.
    """
    by_owner: defaultdict[int | None, list[Rectangle]] = defaultdict(list)
    for owner, piece in (each for cut in cuts for each in cut.pieces()):
        by_owner[owner].append(piece)
        x0, y0, x1, y1 = piece
        size = next((size for size, least in sizes.items() if min(x1 - x0, y1 - y0) > least), 0)
        if size:
            words = "all" if owner is None else str(owner)
            board.numbers([((x0 + x1) / 2, (y0 + y1) / 2, words)], _look(owner), size)
    for owner, pieces in by_owner.items():
        board.boxes(pieces, _look(owner))
        if owner is None and edge:
            board.frames(pieces, edge, 0.8)


def _look(owner: int | None) -> Look:
    return _WHOLE if owner is None else SERIES[owner % len(SERIES)].plain
