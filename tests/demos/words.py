"""Whether the words of a board are legible: none over another, none cut by its edge."""

from __future__ import annotations

from itertools import combinations

from distlab.show.board import Board
from distlab.show.letters import width_of
from distlab.show.look import WIDTH
from distlab.show.marks import Rectangle, Word

_LINE = 0.8 / 72  # inches that letters are high without what few of them have above and below, for each point
_TOUCH = 0.01  # inches that do not count
_BEFORE = {"left": 0.0, "center": 0.5, "right": 1.0}


def words_of(board: Board) -> list[Word]:
    """All words that show."""
    return [mark for mark in board.marks if isinstance(mark, Word) and mark.text.strip()]


def rectangle_of(word: Word) -> Rectangle:
    """Where a word is, as wide as in the widest of its fonts."""
    width, half = width_of(word.text, word.size, word.is_bold), _LINE * word.size / 2
    left = word.x - _BEFORE[word.align] * width
    return left, word.y - half, left + width, word.y + half


def overlaps(board: Board) -> list[tuple[str, str]]:
    """Pairs of words that lie over each other, and words that leave the board, with "edge" beside them."""
    words = [(word.text, rectangle_of(word)) for word in words_of(board)]
    pairs = [(one, other) for (one, a), (other, b) in combinations(words, 2) if _meet(a, b)]
    inside = (-_TOUCH, -_TOUCH, WIDTH + _TOUCH, board.height + _TOUCH)
    return pairs + [(text, "edge") for text, place in words if not _lies_in(place, inside)]


def _meet(a: Rectangle, b: Rectangle) -> bool:
    across, down = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    return across > _TOUCH and down > _TOUCH


def _lies_in(a: Rectangle, b: Rectangle) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]
