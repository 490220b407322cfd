"""A layer on ranks, drawn: stripes with the colour and number of the rank that holds them; grey is whole on all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distlab.demos.tensor_steps import Block, Column, Layer, Step
from distlab.show.blocks import Cut, draw_cuts
from distlab.show.board import MARGIN, Board
from distlab.show.letters import width_of
from distlab.show.look import LETTERS, RULE, TEXT, WIDTH, look_of_message
from distlab.show.marks import Rectangle

_MIDDLES = (1.38, 3.42)  # inches: of the row of the forward pass, and of the backward pass
_HEADS = (0.55, 2.64)  # inches: of their headings
# Inches of an axis, down and across; rows of D are numbered in attention, which takes some height.
_HIGH = {"4D": {"T": 0.5, "D": 0.5, "4D": 1.15}, "3D": {"T": 0.55, "D": 1.08}}
_WIDE = {"4D": {"T": 0.5, "D": 0.5, "4D": 1.15}, "3D": {"T": 0.55, "D": 0.84, "3D": 1.34}}
_GAPS, _STRETCH = (0.25, 0.5), 1.7  # inches between two columns, and at most how much wider matrices may become
_PARTS = 0.7  # inches: as wide as parts of a sum may be, and the word under f and g
_BESIDE = 0.12  # inches between two names
_SIGN, _SUM_SIGN = 15.0, 18.0  # points
_SIZES = {LETTERS: 0.17, 10.0: 0.1}  # points of a number, and the inches that its block must have
_NAME, _LETTERS_OVER = 0.76, 0.19  # inches: from a middle to a name, from a matrix to Q, K and V over it
_SUM = look_of_message("all_reduce").colour


def draw_layer(board: Board, layer: Layer, ranks: int, step: int) -> None:
    """Draws the forward pass over the backward pass after ``step`` steps; what isn't made yet is an empty outline."""
    now = layer.steps[step - 1] if step else None
    made = {made.makes for made in layer.steps[:step]} | {block.name for block in layer.weights} | {"X"}
    placed = _placed(layer, ranks)
    outlines = [place.frame() for name, place in placed.items() if place.block and name not in made]
    board.frames(outlines, colour=RULE, width=1)
    blocks = [(place.block, place.frame()) for name, place in placed.items() if place.block and name in made]
    draw_cuts(board, [_cut(block, area, ranks) for block, area in blocks], _SIZES)
    for x0, y0, x1, _ in (area for block, area in blocks if block.cut == "heads"):
        thirds = [x0 + (third + 0.5) / 3 * (x1 - x0) for third in range(3)]
        board.numbers([(x, y0 - _LETTERS_OVER, name) for x, name in zip(thirds, "QKV")])
    _draw_names(board, placed)
    _draw_signs(board, layer, placed, now)
    if now:  # a bold frame around what is made, dotted ones around what it is made from
        board.frames([placed[name].frame(0.05) for name in now.uses], dotted=True)
        board.frames([placed[now.makes].frame(0.05)], colour=_SUM if now.is_sum else TEXT, width=3)
    key = "a number: the rank that holds it; all: whole on every rank"
    board.word(WIDTH - MARGIN, _HEADS[0], key, align="right")
    for y, words in zip(_HEADS, ("forward →", "← backward")):
        board.word(MARGIN, y, words, align="left", weight="bold")


@dataclass(frozen=True)
class _Place:
    """Where a block stands, or an f or a g, which has no ``block``: its middle, height and width in inches."""

    block: Block | None
    x: float
    y: float
    height: float = 0.3
    width: float = 0.3

    def frame(self, wider: float = 0.0) -> Rectangle:
        across, down = self.width / 2 + wider, self.height / 2 + wider
        return self.x - across, self.y - down, self.x + across, self.y + down


def _placed(layer: Layer, ranks: int) -> dict[str, _Place]:
    """By name, in the middle of the board."""
    axes = {axis for column in layer.columns for block in column.blocks for axis in block.axes}
    widest = "3D" if "3D" in axes else "4D"
    high, wide = _HIGH[widest], _WIDE[widest]
    room = WIDTH - 2 * MARGIN
    for stretch in np.arange(_STRETCH, 1.0, -0.02):
        widths = [_width(column, wide, stretch) for column in layer.columns]
        if sum(widths) + _GAPS[0] * (len(widths) - 1) <= room:
            break
    gap = min(_GAPS[1], (room - sum(widths)) / (len(widths) - 1))
    left = (WIDTH - sum(widths) - gap * (len(widths) - 1)) / 2
    placed = {}
    for column, width in zip(layer.columns, widths):
        for y, thing in zip(_MIDDLES, (column.forward, column.backward)):
            if isinstance(thing, str):
                placed[thing] = _Place(None, left + width / 2, y)
            else:
                placed[thing.name] = _Place(thing, left + width / 2, y, *_size(thing, ranks, high, wide, stretch))
        left += width + gap
    return placed


def _width(column: Column, wide: dict[str, float], stretch: float) -> float:
    """Of the widest matrix of a column, or of its longest name."""
    names = [line for block in column.blocks for line in _name(block, block is column.forward).split("\n")]
    widest = max(_PARTS if block.cut == "parts" else stretch * wide[block.axes[1]] for block in column.blocks)
    return max(widest, *(width_of(name) + _BESIDE - _GAPS[0] for name in names))


def _name(block: Block, is_forward: bool) -> str:
    """What stands under a matrix: its shape too in the forward pass, but not of parts, which have the sum's."""
    if block.cut == "parts":
        return block.name.replace(" of ", "\nof ")
    rows, columns = block.shape
    return f"{block.name}\n{rows} × {columns}" if is_forward else block.name


def _size(
    block: Block, ranks: int, high: dict[str, float], wide: dict[str, float], stretch: float
) -> tuple[float, float]:
    if block.cut == "parts":
        side, across, down = _grid(ranks)
        return down * side, across * side
    return high[block.axes[0]], wide[block.axes[1]] * stretch


def _grid(ranks: int) -> tuple[float, int, int]:
    """Of the parts of a sum: inches for each, how many beside and over each other."""
    return (0.28, 2, 4) if ranks == 8 else (0.35, 1 + (ranks == 4), 1 + (ranks > 1))


def _cut(block: Block, area: Rectangle, ranks: int) -> Cut:
    """The pieces of a block; the ranks in turn own them."""
    owners = list(range(ranks)) * (3 if block.cut == "heads" else 1)
    across = {"columns": ranks, "heads": 3 * ranks, "parts": _grid(ranks)[1]}.get(block.cut, 1)
    return Cut(area, owners if block.cut else (), across, rim=0.03 if block.cut == "parts" else 0.0)


def _draw_names(board: Board, placed: dict[str, _Place]) -> None:
    for place in placed.values():
        if not place.block:
            board.word(place.x, place.y + 0.3, "passes")
            continue
        name = _name(place.block, place.y == _MIDDLES[0])
        board.word(place.x, place.y + _NAME + 0.12 * name.count("\n"), name)


def _draw_signs(board: Board, layer: Layer, placed: dict[str, _Place], now: Step | None) -> None:
    """Signs between the matrices, f and g; a sum that happens now has the colour of messages."""
    signs = [(place.x, place.y, name) for name, place in placed.items() if not place.block]
    sums = {}
    for before, after in zip(layer.columns, layer.columns[1:]):
        x = (_right(before, placed) + _left(after, placed)) / 2
        if after.sign == "Σ":
            sums[False] = (x, _MIDDLES[0], "Σ")
        elif after.sign:
            signs.append((x, _MIDDLES[0], after.sign))
        if after.note:
            board.word(x, _MIDDLES[0] + 0.45, after.note)
        if after.forward == "f":
            sums[True] = (x, _MIDDLES[1], "Σ")
    happens = now.is_backward if now and now.is_sum else None
    board.numbers(signs + [sign for way, sign in sums.items() if way != happens], size=_SIGN)
    board.numbers([sign for way, sign in sums.items() if way == happens], size=_SUM_SIGN, colour=_SUM)


def _right(column: Column, placed: dict[str, _Place]) -> float:
    return max(placed[block.name].frame()[2] for block in column.blocks)


def _left(column: Column, placed: dict[str, _Place]) -> float:
    return min(placed[block.name].frame()[0] for block in column.blocks)
