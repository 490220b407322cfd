"""Picture: a text for terminals, screen readers and tests; in a notebook an image, with that text beside it."""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path as File

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from PIL import Image

from distlab.show.colours import GREY, INK, PALE, UNLABELLED, WHITE, okabe_ito

WIDTH = 110  # columns of a text
CAPTION_WIDTH = 135  # characters of a line that fits into an image
MOST_NOTES = 3  # in an image
INCHES = 9.6  # of an image's width, at DPI pixels each
DPI = 100
_NO_BREAK = "\N{NO-BREAK SPACE}"
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "text.hinting": "none",  # bold letters of 10 and 11 points would get serifs
    "hatch.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def wrap(*texts: str, width: int = WIDTH) -> list[str]:
    """Each text in as many lines as it needs, no number apart from its unit."""
    together = (re.sub(r"(?<=\d) (?=\S)", _NO_BREAK, text) for text in texts)
    wrapped = (textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) for text in together)
    return [line.replace(_NO_BREAK, " ") for lines in wrapped for line in lines]


def in_short(notes: Sequence[str]) -> list[str]:
    """What stands of some notes in an image, which many readers see without its text: the first, and how many more."""
    more = [f"and {len(notes) - MOST_NOTES:,} notes more: print() shows them all"] if len(notes) > MOST_NOTES else []
    return [*(f"note: {note}" for note in notes[:MOST_NOTES]), *more]


class Picture:
    """Something that draws itself: ``str()`` is the text, ``png()`` the image.

    Nothing of it goes through pyplot: it is shown once, where it is the value of a cell, and leaves no figure behind.
    The same picture gives the same text and the same image, to the byte.
    """

    def text(self) -> str:
        """The picture in words and characters."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """The picture, drawn."""
        raise NotImplementedError

    def png(self) -> bytes:
        """The image, ``INCHES`` × ``DPI`` pixels wide; small, to be kept."""
        return _small_png(self.pixels())

    def quick_png(self) -> bytes:
        """The same image, several times larger and made in a quarter of the time: to be looked at and thrown away."""
        file = io.BytesIO()
        Image.fromarray(self.pixels()[..., :3]).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def pixels(self) -> np.ndarray:
        """The image as bytes: rows × columns × (red, green, blue, opacity)."""
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)
            canvas = FigureCanvasAgg(self.figure())
            canvas.draw()
        return np.asarray(canvas.buffer_rgba())

    def save(self, path: str | File) -> None:
        """Writes the image to a file."""
        File(path).write_bytes(self.png())

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.text(), "image/png": base64.b64encode(self.png()).decode("ascii")}


def _small_png(pixels: np.ndarray) -> bytes:
    """Each pixel in the nearest colour of a palette: a notebook holds many pictures in its megabyte.

    The palette is our colours as they are, and on their way to white and to ink, for the edges of things.
    """
    palette = np.array(_palette())
    packed = (pixels[..., :3].astype(np.int32) << (16, 8, 0)).sum(axis=2)
    colours, which = np.unique(packed, return_inverse=True)
    distances = np.abs((colours[:, None] >> (16, 8, 0) & 255)[:, None] - palette).sum(axis=2)
    nearest = distances.argmin(axis=1).astype(np.uint8)
    image = Image.fromarray(nearest[which].reshape(packed.shape), "P")
    image.putpalette(palette.astype(np.uint8).tobytes())
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _palette() -> list[tuple[int, int, int]]:
    ends = [(to_rgb(WHITE), step / 12) for step in range(12)] + [(to_rgb(INK), step / 5) for step in range(1, 5)]
    colours = [
        tuple(round(255 * ((1 - part) * mine + part * its)) for mine, its in zip(to_rgb(colour), end))
        for colour in dict.fromkeys((*okabe_ito.values(), INK, PALE, UNLABELLED.colour, GREY))
        for end, part in ends
    ]
    return [(255, 255, 255), *dict.fromkeys(colours)]


def new_figure(height: float) -> Figure:
    """An empty figure of the usual width, ``height`` inches high."""
    return Figure(figsize=(INCHES, height), dpi=DPI, facecolor="white")


def boxes(rectangles: Sequence[tuple[float, float, float, float]], **style) -> PathPatch:
    """Rectangles of one style as one thing to draw, which hatches thousands at once; each is (x0, y0, x1, y1)."""
    x0, y0, x1, y1 = np.array(rectangles, dtype=float).reshape(-1, 4).T
    corners = np.stack([np.stack(corner, axis=1) for corner in ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0))], 1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(corners)
    return PathPatch(Path(corners.reshape(-1, 2), codes), **style)
