"""Traffic as an image: matrices of what was observed and of what is assumed, and what each rank sends as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from distlab.machine.units import quantity
from distlab.show.colours import FAINT, INK, WHITE, okabe_ito
from distlab.show.grid import MOST_NUMBERS, Grid
from distlab.show.picture import CAPTION_WIDTH, INCHES, boxes, new_figure, wrap
from distlab.traffic import Traffic

HATCH = "////"  # of what is assumed
_LEFT, _GAP, _TOP, _RIGHT = 0.8, 0.6, 0.52, 0.75  # inches: beside the matrices, between them, over them, beside bars
_LIGHTEST, _DARKEST = np.array(to_rgb("#CBE7F8")), np.array(to_rgb(okabe_ito["sky blue"]))
_LINES = okabe_ito["blue"]  # of the hatch
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def draw(traffic: Traffic, title: str, caption: Sequence[str]) -> Figure:
    """The figure: always of the same size for a number of captions."""
    parts = {"observed": traffic.observed, "assumed": traffic.assumed}
    grids = {what: Grid.of(traffic.num_ranks, bytes) for what, bytes in parts.items() if bytes or what == "observed"}
    if not traffic.observed and traffic.assumed:
        del grids["observed"]
    side = 3.1 if len(grids) == 1 else 2.7
    caption = wrap(*caption, width=CAPTION_WIDTH)
    height = _TOP + side + 0.4 + 0.15 * len(caption)
    figure = new_figure(height)
    figure.text(_LEFT / INCHES, 1 - 0.08 / height, title, va="top", color=INK)
    figure.text(_LEFT / INCHES, 0.08 / height, "\n".join(caption), va="bottom", color=INK, linespacing=1.3)

    def panel(left: float, width: float) -> Axes:
        return figure.add_axes((left / INCHES, 1 - (_TOP + side) / height, width / INCHES, side / height))

    largest = max((bytes for grid in grids.values() for bytes in grid.cells.values()), default=0)
    for number, (what, grid) in enumerate(grids.items()):
        _draw_matrix(panel(_LEFT + number * (side + _GAP), side), what, grid, largest)
    left = _LEFT + len(grids) * (side + _GAP)
    _draw_bars(panel(left, INCHES - left - _RIGHT), grids)
    return figure


def _draw_matrix(axes: Axes, what: str, grid: Grid, largest: float) -> None:
    size, unit = _unit(largest)
    shades = np.full((grid.side, grid.side, 3), 1.0)
    for cell, bytes in grid.cells.items():
        shades[cell] = _shade(bytes, largest)
    axes.imshow(shades, aspect="auto", interpolation="nearest")
    if what == "assumed":
        squares = [(column - 0.5, row - 0.5, column + 0.5, row + 0.5) for row, column in grid.cells]
        axes.add_artist(boxes(squares, facecolor="none", edgecolor=_LINES, hatch=HATCH, linewidth=0))
    if grid.side <= MOST_NUMBERS:
        for (row, column), bytes in grid.cells.items():
            around = [withStroke(linewidth=3, foreground=_shade(bytes, largest))]
            words = {"ha": "center", "va": "center", "color": INK, "path_effects": around}
            axes.text(column, row, _number(bytes, size), fontsize=7, **words)
    source = "send" if what == "observed" else "built-in collectives"
    axes.set_title(f"{what} ({source}), {unit}", fontsize=8, loc="left", color=INK)
    axes.set_xlim(-0.5, grid.side - 0.5)
    axes.set_xlabel("to rank", color=INK, labelpad=1)
    axes.set_xticks(*_ticks(grid))
    axes.spines[["top", "right"]].set_visible(True)
    _finish(axes, grid)


def _draw_bars(axes: Axes, grids: Mapping[str, Grid]) -> None:
    some = next(iter(grids.values()))
    ends, height = [0.0] * some.side, 0.75 if some.side <= 16 else 1.0
    for what, grid in grids.items():
        hatch, edge = (HATCH, _LINES) if what == "assumed" else ("", WHITE)
        style = {"color": okabe_ito["sky blue"], "edgecolor": edge, "hatch": hatch, "linewidth": 0, "height": height}
        axes.barh(range(some.side), grid.sums(), left=ends, **style)
        ends = [end + more for end, more in zip(ends, grid.sums())]
    if some.side <= 16:
        for row, end in enumerate(ends):
            axes.text(end, row, f" {quantity(end, 'B')}", va="center", color=INK)
    axes.set_xlim(0, max(ends, default=0) or 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("sent by rank", fontsize=8, loc="left", color=INK)
    _finish(axes, some)


def _finish(axes: Axes, grid: Grid) -> None:
    axes.set_ylim(max(1, grid.side) - 0.5, -0.5)
    axes.set_yticks(*_ticks(grid))
    axes.set_ylabel("rank" if axes.get_xticks().size == 0 else "from rank", color=INK, labelpad=2)
    axes.tick_params(length=0, labelcolor=INK, pad=2)
    for spine in axes.spines.values():
        spine.set_color(FAINT)


def _ticks(grid: Grid) -> tuple[list[int], list[str]]:
    numbers = list(range(0, grid.side, 1 if grid.side <= 16 else 8))
    return numbers, [str(number * grid.ranks_per_cell) for number in numbers]


def _number(bytes: float, size: float) -> str:
    return f"{bytes / size:.3g}" if bytes >= size / 100 or not bytes else "<0.01"


def _unit(largest: float) -> tuple[float, str]:
    """The unit in which the largest of some bytes is at least one."""
    return next(((size, unit) for size, unit in _UNITS if largest >= size), (1.0, "B"))


def _shade(bytes: float, largest: float) -> np.ndarray:
    return _LIGHTEST + (_DARKEST - _LIGHTEST) * (bytes / largest if largest else 0.0)
