"""Raster: a board as a PNG, for where an SVG is not shown: in a notebook that is not trusted, in a mail."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path
from PIL import Image

from distlab.show.letters import letters
from distlab.show.look import COLOURS, DPI, INK, MID, RULE, TEXT, WHITE, WIDTH
from distlab.show.marks import Area, Arrows, Boxes, Frames, Lines, Pixels, Rectangle, Word

if TYPE_CHECKING:
    from distlab.show.board import Board


def png_of(board: Board) -> bytes:
    """The PNG of a board, ``WIDTH`` × ``DPI`` pixels wide, on white."""
    return _small_png(_pixels(board))


def _pixels(board: Board) -> np.ndarray:
    """Rows × columns × (red, green, blue, opacity)."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["hatch.linewidth"] = 0.7
        figure = Figure(figsize=(WIDTH, board.height), dpi=DPI, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        marks = board.marks
        for mark in marks:
            if not isinstance(mark, Word):
                _draw(mark, axes)
        _draw_words([mark for mark in marks if isinstance(mark, Word)], axes)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(board.height, 0)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@singledispatch
def _draw(mark, axes: Axes) -> None:
    raise TypeError(f"no drawing is known for {mark!r}")


@_draw.register
def _(mark: Boxes, axes: Axes) -> None:
    half = mark.gap / 2
    inner = [(x0 + half, y0 + half, x1 - half, y1 - half) for x0, y0, x1, y1 in mark.rectangles]
    style = {"facecolor": mark.look.colour, "edgecolor": WHITE, "hatch": mark.look.hatch, "linewidth": 0}
    axes.add_artist(_patch(inner, zorder=mark.layer, **style))


@_draw.register
def _(mark: Area, axes: Axes) -> None:
    style = {"facecolor": mark.look.colour, "edgecolor": WHITE, "hatch": mark.look.hatch, "linewidth": 0}
    axes.add_artist(Polygon(mark.points, closed=True, zorder=mark.layer, **style))


@_draw.register
def _(mark: Frames, axes: Axes) -> None:
    style = {"facecolor": "none", "edgecolor": _on_white(mark.colour), "linewidth": mark.width}
    axes.add_artist(_patch(mark.rectangles, linestyle=mark.style, zorder=mark.layer, **style))


@_draw.register
def _(mark: Lines, axes: Axes) -> None:
    look = {"colors": _on_white(mark.colour), "linewidths": mark.width, "linestyles": mark.style}
    axes.add_collection(LineCollection(mark.lines, zorder=mark.layer, **look), autolim=False)


@_draw.register
def _(mark: Arrows, axes: Axes) -> None:
    x0, y0, x1, y1 = np.array(mark.arrows).T
    scale = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "dots", "minlength": 0}
    heads = {"headwidth": mark.head, "headlength": mark.head + 1, "headaxislength": mark.head}
    style = {"color": _on_white(mark.colour), "width": mark.width * DPI / 72, "zorder": mark.layer}
    axes.quiver(x0, y0, x1 - x0, y1 - y0, **scale, **heads, **style)


@_draw.register
def _(mark: Pixels, axes: Axes) -> None:
    x0, y0, x1, y1 = mark.rectangle
    style = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
    axes.imshow(mark.values, extent=(x0, x1, y1, y0), zorder=mark.layer, **style)


def _draw_words(words: Iterable[Word], axes: Axes) -> None:
    """Those of one colour as one thing, which takes a tenth of the time."""
    by_look: defaultdict[tuple[str, str], list[Word]] = defaultdict(list)
    for word in words:
        by_look[word.colour, word.rim].append(word)
    for (colour, rim), alike in by_look.items():
        if rim:
            edge = {"edgecolor": rim, "linewidth": 2.5, "joinstyle": "round", "zorder": alike[0].layer - 0.1}
            axes.add_artist(letters(alike, rim)).set(**edge)
        axes.add_artist(letters(alike, _on_white(colour)))


def _on_white(colour: str) -> str:
    return INK if colour == TEXT else colour


def _patch(rectangles: Sequence[Rectangle], **style) -> PathPatch:
    """Rectangles of one style as one thing to draw, which hatches thousands at once."""
    x0, y0, x1, y1 = np.array(rectangles, dtype=float).reshape(-1, 4).T
    corners = np.stack([np.stack(corner, axis=1) for corner in ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0))], 1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(corners)
    return PathPatch(Path(corners.reshape(-1, 2), codes), **style)


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
    ends = [(to_rgb(WHITE), step / 9) for step in range(9)] + [(to_rgb(INK), step / 4) for step in range(1, 4)]
    colours = [
        tuple(round(255 * ((1 - part) * mine + part * its)) for mine, its in zip(to_rgb(colour), end))
        for colour in dict.fromkeys((*COLOURS, MID, RULE, INK))
        for end, part in ends
    ]
    return [(255, 255, 255), *dict.fromkeys(colours)]
