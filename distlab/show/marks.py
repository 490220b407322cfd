"""Marks: what a board is made of, in inches from its top left corner; those of a higher ``layer`` lie above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distlab.show.look import Look

Rectangle = tuple[float, float, float, float]  # x0, y0, x1, y1
Point = tuple[float, float]


class Boxes(NamedTuple):
    """Filled boxes of one look; ``gap`` inches stay free between two that touch."""

    rectangles: Sequence[Rectangle]
    look: Look
    gap: float = 0.0
    layer: int = 1


class Area(NamedTuple):
    """A filled polygon."""

    points: Sequence[Point]
    look: Look
    layer: int = 1


class Frames(NamedTuple):
    """Empty boxes, their lines so many points wide."""

    rectangles: Sequence[Rectangle]
    colour: str
    width: float
    style: str
    layer: int = 1


class Lines(NamedTuple):
    """Lines through points, so many points wide; ``style`` is "-", "--" or ":"."""

    lines: Sequence[Sequence[Point]]
    colour: str
    width: float
    style: str
    layer: int = 2


class Arrows(NamedTuple):
    """Straight arrows, (x0, y0, x1, y1), ``width`` points wide, their heads ``head`` times as wide."""

    arrows: Sequence[Rectangle]
    colour: str
    width: float
    head: float
    layer: int = 3


class Pixels(NamedTuple):
    """Values from 0 (white) to 1 (black) as small squares."""

    values: np.ndarray
    rectangle: Rectangle
    layer: int = 1


class Word(NamedTuple):
    """A line of text, its middle at ``y``; ``size`` in points, ``align`` "left", "center" or "right"."""

    x: float
    y: float
    text: str
    size: float
    align: str
    is_bold: bool
    colour: str
    rim: str = ""
    layer: int = 4


Mark = Boxes | Area | Frames | Lines | Arrows | Pixels | Word
