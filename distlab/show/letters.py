"""Letters: texts as outlines, many of them drawn at once, which takes a tenth of the time that each alone would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from distlab.show.look import LETTERS
from distlab.show.marks import Word

FONT = "DejaVu Sans"
_POINTS = 72  # an inch
_HALF_A_CAPITAL = 0.365  # of a letter's size
_SHARE_BEFORE = {"left": 0.0, "center": 0.5, "right": 1.0}  # of a text's width, what lies left of its place


@lru_cache(maxsize=4096)
def _outline(text: str, size: float, is_bold: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Corners in inches from the beginning of the baseline, y upwards, with their codes; and the width."""
    text = "".join(filter(str.isprintable, text))
    if not text.strip():
        return np.empty((0, 2)), np.empty(0, dtype=Path.code_type), 0.0
    font = FontProperties(family=FONT, weight="bold" if is_bold else "normal")
    path = TextPath((0, 0), text, size=size / _POINTS, prop=font)
    return path.vertices, path.codes, float(path.vertices[:, 0].max())


def width_of(text: str, size: float = LETTERS, is_bold: bool = False) -> float:
    """The inches that a text is wide."""
    return _outline(text, size, is_bold)[2]


def letters(words: Sequence[Word], colour: str) -> PathPatch:
    """Texts of one colour as one thing to draw, where y goes downwards."""
    corners, codes = [np.empty((0, 2))], [np.empty(0, dtype=Path.code_type)]
    for word in words:
        of_text, codes_of_text, width = _outline(word.text, word.size, word.is_bold)
        baseline = word.y + _HALF_A_CAPITAL * word.size / _POINTS
        corners.append(of_text * (1, -1) + (word.x - _SHARE_BEFORE[word.align] * width, baseline))
        codes.append(codes_of_text)
    path = Path(np.concatenate(corners), np.concatenate(codes))
    return PathPatch(path, facecolor=colour, edgecolor="none", zorder=words[0].layer)
