"""What tests ask of a picture."""

from __future__ import annotations

import re
from itertools import pairwise

from distlab.show.board import Board
from distlab.show.marks import Boxes, Lines, Rectangle
from tests.demos.words import overlaps, rectangle_of, words_of

_TOUCH = 0.015  # inches: so much may be shared
_LEAST, _ON_BOXES = 12.5, 10.0  # points of words


def size_of(board: Board) -> tuple[float, float]:
    """How wide and how high its drawing is, in its own units."""
    left, top, width, height = map(float, re.search(r'viewBox="([^"]*)"', board.svg()).group(1).split())
    assert (left, top) == (0, 0)
    return width, height


def assert_legible(board: Board) -> None:
    """No word leaves the board, lies on another, is small, or has a line through it; on boxes they may be smaller."""
    assert not overlaps(board), board.title
    boxes = [box for mark in board.marks if isinstance(mark, Boxes) for box in mark.rectangles]
    lines = _lines(board)
    for word in words_of(board):
        if any(x0 <= word.x <= x1 and y0 <= word.y <= y1 for x0, y0, x1, y1 in boxes):
            assert word.size >= _ON_BOXES, f"{word.text!r} is small in {board.title!r}"
            continue
        assert word.size >= _LEAST, f"{word.text!r} is small in {board.title!r}"
        place = rectangle_of(word)
        assert not any(_overlap(line, place) for line in lines), f"a line strikes {word.text!r} in {board.title!r}"


def _lines(board: Board) -> list[Rectangle]:
    """The lines along the sides of the board, as flat rectangles."""
    lines = [line for mark in board.marks if isinstance(mark, Lines) for line in mark.lines]
    ends = [
        (*map(min, a, b), *map(max, a, b)) for line in lines for a, b in pairwise(line) if a[0] == b[0] or a[1] == b[1]
    ]
    return [(x0 - _TOUCH, y0 - _TOUCH, x1 + _TOUCH, y1 + _TOUCH) for x0, y0, x1, y1 in ends]


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    across, down = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    return across > _TOUCH and down > _TOUCH
