"""What tests ask of a picture."""

from __future__ import annotations

import io

from PIL import Image

from distlab.show.board import Board


def size_of(board: Board) -> tuple[int, int]:
    """The pixels of its image, across and down."""
    return Image.open(io.BytesIO(board.quick_png())).size
