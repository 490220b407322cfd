"""Picture: a text for terminals, screen readers and tests; in a notebook a drawing, with that text beside it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.show.raster import png_of
from distlab.show.vector import svg_of

if TYPE_CHECKING:
    from distlab.show.board import Board

_MOST_BYTES = 300_000  # bytes of an SVG that a notebook keeps


class Picture:
    """Something that draws itself: ``str()`` is the text, ``svg()`` and ``png()`` the drawing.

    It is shown once, where it is the value of a cell, and leaves nothing behind. The same picture gives the same text
    and the same drawing, to the byte.
    """

    def text(self) -> str:
        """The picture in words and characters."""
        raise NotImplementedError

    def board(self) -> Board:
        """The picture, drawn."""
        raise NotImplementedError

    def svg(self) -> str:
        """The drawing as an SVG, without a ground."""
        return svg_of(self.board())

    def png(self) -> bytes:
        """The drawing as pixels on white, for where an SVG is not shown."""
        return png_of(self.board())

    def save(self, path: str | Path) -> None:
        """Writes the drawing to a file: an SVG where its name ends so, a PNG otherwise."""
        if Path(path).suffix.lower() == ".svg":
            Path(path).write_text(self.svg(), encoding="utf-8")
        else:
            Path(path).write_bytes(self.png())

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.text()} | images_of(self)


def images_of(picture: Picture) -> dict[str, str]:
    """The drawing as a notebook keeps it: a PNG for those who have not trusted it, an SVG unless it has too much."""
    svg, png = picture.svg(), base64.b64encode(picture.png()).decode("ascii")
    return {"image/png": png} | ({"image/svg+xml": svg} if len(svg) < _MOST_BYTES else {})
