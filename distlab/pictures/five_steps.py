"""Data parallelism in five steps: four ranks, one model, and a batch of eight rows."""

from __future__ import annotations

from distlab.show.drawing import LARGE, SMALL, Drawing
from distlab.show.look import PLAIN, SERIES

RANKS = 4
_LEFT, _COLUMN, _BOX, _HIGH = 212, 130, 116, 36
_ROWS = {"replicate": 54, "split_batch": 140, "compute_gradients": 200, "average_gradients": 332, "update": 390}
_SAYS = {
    "replicate": "same weights",
    "split_batch": "different rows",
    "compute_gradients": "different gradients",
    "average_gradients": "same gradient",
    "update": "same weights again",
}


def draw() -> Drawing:
    """The drawing."""
    drawing = Drawing(
        920,
        436,
        "Data parallelism in five steps",
        "Four ranks start with the same weights w. At each step rank r takes two of the batch's eight rows and "
        "computes gradients g0 to g3, which differ. Their mean g reaches all ranks, each subtracts lr times g from "
        "w, and the weights are the same again.",
    )
    for rank in range(RANKS):
        drawing.text(_middle(rank), 22, f"rank {rank}", size=LARGE, bold=True)
        _column(drawing, rank)
    for number, (name, y) in enumerate(_ROWS.items()):
        drawing.text(14, y + _HIGH / 2, f"{number + 1}", size=LARGE, bold=True)
        drawing.text(32, y + _HIGH / 2, name, anchor="start")
        drawing.text(_LEFT + RANKS * _COLUMN + 8, y + _HIGH / 2, _SAYS[name], size=SMALL, anchor="start")
    drawing.text(8, 115, "then, at every step:", size=SMALL, anchor="start")
    _mean(drawing)
    return drawing


def _column(drawing: Drawing, rank: int) -> None:
    """What one rank has after each step: its own things in its own colour, what all share in the same."""
    x, own = _middle(rank) - _BOX / 2, SERIES[rank]
    drawing.box(x, _ROWS["replicate"], _BOX, _HIGH, PLAIN, "w")
    for row in range(2):
        half = (_BOX - 6) / 2
        drawing.box(x + row * (half + 6), _ROWS["split_batch"], half, _HIGH, own, f"row {2 * rank + row}", SMALL)
    drawing.box(x, _ROWS["compute_gradients"], _BOX, _HIGH, own, f"g{rank}")
    drawing.box(x, _ROWS["average_gradients"], _BOX, _HIGH, PLAIN, "g")
    drawing.box(x, _ROWS["update"], _BOX, _HIGH, PLAIN, "w − lr · g")


def _mean(drawing: Drawing) -> None:
    """All gradients come together, and their mean goes to every rank."""
    top, bottom = _ROWS["compute_gradients"] + _HIGH, _ROWS["average_gradients"]
    middle = (top + bottom) / 2
    left, right, width = _middle(0), _middle(RANKS - 1), 290
    centre = (left + right) / 2
    for rank in range(RANKS):
        drawing.line([(_middle(rank), top + 4), (_middle(rank), middle - 24)])
        drawing.arrow([(_middle(rank), middle + 24), (_middle(rank), bottom - 4)])
    for y in (middle - 24, middle + 24):
        drawing.line([(left, y), (right, y)])
    drawing.arrow([(centre, middle - 24), (centre, middle - 17)])
    drawing.box(centre - width / 2, middle - 17, width, _HIGH, PLAIN, "g = (g0 + g1 + g2 + g3) / 4")
    drawing.line([(centre, middle + 17), (centre, middle + 24)])


def _middle(rank: int) -> float:
    return _LEFT + (rank + 0.5) * _COLUMN
