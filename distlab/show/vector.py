"""Vector: a board as an SVG, in which text is text, and which a page can make as large as it likes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from distlab.show.drawing import Drawing
from distlab.show.look import DPI, WIDTH
from distlab.show.marks import Area, Arrows, Boxes, Frames, Lines, Pixels, Rectangle, Word

if TYPE_CHECKING:
    from distlab.show.board import Board

_POINT = DPI / 72  # in pixels
_DASHES = {"-": "", "--": "6 4", ":": "1.5 4"}
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}


def svg_of(board: Board, attributes: Mapping[str, str] | None = None) -> str:
    """The SVG of a board: a file, or with ``attributes`` of its own a part of a page.

    What it defines is named after its "id", which must be one of its own: a page looks for a name in all that it has,
    and shows nothing if it finds it first in something hidden.
    """
    name = (attributes or {}).get("id", "")
    drawing = Drawing(WIDTH * DPI, round(board.height * DPI), board.title, board.text(), fills=True, name=name)
    for mark in board.marks:
        _draw(mark, drawing)
    return drawing.svg(attributes)


@singledispatch
def _draw(mark, drawing: Drawing) -> None:
    raise TypeError(f"no drawing is known for {mark!r}")


@_draw.register
def _(mark: Boxes, drawing: Drawing) -> None:
    drawing.boxes([_pixels(each) for each in mark.rectangles], mark.look, mark.gap * DPI)


@_draw.register
def _(mark: Area, drawing: Drawing) -> None:
    drawing.area([(x * DPI, y * DPI) for x, y in mark.points], mark.look)


@_draw.register
def _(mark: Frames, drawing: Drawing) -> None:
    for x0, y0, x1, y1 in map(_pixels, mark.rectangles):
        line = {"line": mark.width * _POINT, "dashes": _DASHES[mark.style]}
        drawing.frame(x0, y0, x1 - x0, y1 - y0, mark.colour, **line)


@_draw.register
def _(mark: Lines, drawing: Drawing) -> None:
    lines = [[(x * DPI, y * DPI) for x, y in line] for line in mark.lines]
    drawing.lines(lines, mark.colour, mark.width * _POINT, _DASHES[mark.style])


@_draw.register
def _(mark: Arrows, drawing: Drawing) -> None:
    for x0, y0, x1, y1 in map(_pixels, mark.arrows):
        width = mark.width * _POINT
        drawing.arrow([(x0, y0), (x1, y1)], mark.colour, width, mark.head * width)


@_draw.register
def _(mark: Pixels, drawing: Drawing) -> None:
    file = io.BytesIO()
    Image.fromarray((255 * (1 - np.clip(mark.values, 0, 1))).astype(np.uint8)).save(file, "PNG")
    x0, y0, x1, y1 = _pixels(mark.rectangle)
    drawing.image(base64.b64encode(file.getvalue()).decode("ascii"), x0, y0, x1 - x0, y1 - y0)


@_draw.register
def _(mark: Word, drawing: Drawing) -> None:
    style = {"size": mark.size * _POINT, "anchor": _ANCHORS[mark.align], "colour": mark.colour}
    drawing.text(mark.x * DPI, mark.y * DPI, mark.text, bold=mark.is_bold, rim=mark.rim, **style)


def _pixels(rectangle: Rectangle) -> Rectangle:
    x0, y0, x1, y1 = rectangle
    return x0 * DPI, y0 * DPI, x1 * DPI, y1 * DPI
