"""What tests ask of a picture."""

from __future__ import annotations

import re

from distlab.show.board import Board


def size_of(board: Board) -> tuple[float, float]:
    """How wide and how high its drawing is, in its own units."""
    left, top, width, height = map(float, re.search(r'viewBox="([^"]*)"', board.svg()).group(1).split())
    assert (left, top) == (0, 0)
    return width, height
