"""Traffic as an image: matrices of what was observed and of what is assumed, and what each rank sends as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from distlab.machine.units import quantity
from distlab.show.board import LINE, MARGIN, Board
from distlab.show.grid import MOST_NUMBERS, Grid
from distlab.show.look import INK, LETTERS, MID, WIDTH, Look
from distlab.show.words import IN_A_PICTURE, wrap
from distlab.traffic import Traffic

HATCH = "////"  # of what is assumed
SHADES = ("#D6EAF8", "#ABD5F2", "#7FC1EC", "#56B4E9")  # of cells, by their share of the largest, on the way to sky blue
_LEFT, _GAP, _OVER, _UNDER = 0.62, 0.72, 0.62, 0.4  # inches: beside the matrices, between, over and under them
_BARS, _AMOUNT = 0.62, 1.1  # inches: from the last matrix to the bars, of the amounts beside them
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def draw(traffic: Traffic, title: str, caption: Sequence[str]) -> Board:
    """The board: always of the same size for a number of captions."""
    parts = {"observed": traffic.observed, "assumed": traffic.assumed}
    grids = {what: Grid.of(traffic.num_ranks, bytes) for what, bytes in parts.items() if bytes or what == "observed"}
    if not traffic.observed and traffic.assumed:
        del grids["observed"]
    side, title, caption = 3.0 if len(grids) == 1 else 2.5, wrap(title, width=IN_A_PICTURE), _wrapped(caption)
    top = 0.1 + LINE * len(title) + _OVER
    board = Board("", top + side + _UNDER + LINE * len(caption) + 0.05)
    board.caption(title)
    for line, words in enumerate(caption):
        board.word(MARGIN, top + side + _UNDER + LINE * (line + 0.5), words, align="left")
    largest = max((bytes for grid in grids.values() for bytes in grid.cells.values()), default=0)
    for number, (what, grid) in enumerate(grids.items()):
        _draw_matrix(board, _LEFT + number * (side + _GAP), top, side, what, grid, largest)
    _draw_bars(board, _LEFT + len(grids) * (side + _GAP) - _GAP + _BARS, top, side, grids)
    return board


def _wrapped(caption: Sequence[str]) -> list[str]:
    return wrap(*caption, width=IN_A_PICTURE)


def _draw_matrix(board: Board, left: float, top: float, side: float, what: str, grid: Grid, largest: float) -> None:
    (size, unit), each = _unit(largest), side / max(1, grid.side)
    by_shade = sorted((_shade(bytes, largest), cell) for cell, bytes in grid.cells.items() if bytes)
    for shade, cells in groupby(by_shade, key=lambda pair: pair[0]):
        boxes = [_cell(left, top, each, *cell) for _, cell in cells]
        board.boxes(boxes, Look(shade, HATCH if what == "assumed" else ""), narrow=0.1)
    if grid.side <= MOST_NUMBERS:
        for (row, column), bytes in grid.cells.items():
            x0, y0, x1, y1 = _cell(left, top, each, row, column)
            text, rim = _number(bytes, size), _shade(bytes, largest) if what == "assumed" else ""
            board.word((x0 + x1) / 2, (y0 + y1) / 2, text, min(LETTERS, 30 * each), colour=INK, around=rim)
    board.frames([(left, top, left + side, top + side)], MID, 0.8)
    board.word(left, top - 0.46, f"{what}, {unit}", align="left", weight="bold")
    board.word(left, top - 0.17, "to rank", align="left", colour=MID)
    board.word(left - 0.36, top + side + 0.17, "from rank", align="left", colour=MID)
    for number, name in _ticks(grid):
        middle = (number + 0.5) * each
        if left + middle > left + 0.75:  # beside the words
            board.word(left + middle, top - 0.17, name, colour=MID)
        board.word(left - 0.1, top + middle, name, align="right", colour=MID)


def _draw_bars(board: Board, left: float, top: float, side: float, grids: Mapping[str, Grid]) -> None:
    some = next(iter(grids.values()))
    each, totals = side / max(1, some.side), [sum(sums) for sums in zip(*(grid.sums() for grid in grids.values()))]
    inches = max(0.1, WIDTH - left - _AMOUNT) / (max(totals, default=0) or 1)
    around, ends = each / 8 if some.side <= 16 else 0.0, [0.0] * some.side
    for what, grid in grids.items():
        look = Look(SHADES[-1], HATCH if what == "assumed" else "")
        starts, ends = ends, [end + more for end, more in zip(ends, grid.sums())]
        boxes = [
            (left + start * inches, top + row * each + around, left + end * inches, top + (row + 1) * each - around)
            for row, (start, end) in enumerate(zip(starts, ends))
            if end > start
        ]
        board.boxes(boxes, look)
    board.word(left, top - 0.17, "sent by rank", align="left", colour=MID)
    for row, total in enumerate(totals if some.side <= 16 else ()):
        board.word(left + total * inches + 0.07, top + (row + 0.5) * each, quantity(total, "B"), align="left")


def _cell(left: float, top: float, each: float, row: int, column: int) -> tuple[float, float, float, float]:
    x, y = left + column * each, top + row * each
    return x, y, x + each, y + each


def _ticks(grid: Grid) -> list[tuple[int, str]]:
    every = 1 if grid.side <= 10 else 2 if grid.side <= 16 else 8
    return [(number, str(number * grid.ranks_per_cell)) for number in range(0, grid.side, every)]


def _number(bytes: float, size: float) -> str:
    return f"{bytes / size:.3g}" if bytes >= size / 100 or not bytes else "<0.01"


def _unit(largest: float) -> tuple[float, str]:
    """The unit in which the largest of some bytes is at least one."""
    return next(((size, unit) for size, unit in _UNITS if largest >= size), (1.0, "B"))


def _shade(bytes: float, largest: float) -> str:
    return SHADES[min(len(SHADES) - 1, int(len(SHADES) * bytes / largest))] if largest else SHADES[0]
