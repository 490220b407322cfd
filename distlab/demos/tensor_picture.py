"""A layer on ranks, drawn: stripes in the colour, hatch and number of the rank that holds them; grey: whole on all."""

from __future__ import annotations

from dataclasses import dataclass

from distlab.demos.tensor_steps import Block, Column, Layer, Step
from distlab.show.blocks import Cut, draw_cuts
from distlab.show.board import LETTERS, MARGIN, Board
from distlab.show.look import FAINT, INK, WIDTH, okabe_ito
from distlab.show.marks import Rectangle

_MIDDLES = (1.19, 3.0)  # inches: of the row of the forward pass, and of the backward pass
_LENGTHS = {"4D": {"T": 0.5, "D": 0.5, "4D": 1.15}, "3D": {"T": 0.5, "D": 0.78, "3D": 1.35}}  # inches of an axis
_PARTS = 0.88  # inches: the width of parts of a sum, beside each other
_GAP, _STRETCH = 0.5, 1.7  # at most: inches between two columns, and how much wider matrices may become
_SIGNS = 15
_SIZES = {float(LETTERS): 0.16, 9.0: 0.09}  # points of a number, and the inches that its block must have
_SUM = okabe_ito["vermillion"]


def draw_layer(board: Board, layer: Layer, ranks: int, step: int) -> None:
    """Draws the forward pass over the backward pass after ``step`` steps; what isn't made yet is an empty outline."""
    now = layer.steps[step - 1] if step else None
    made = {made.makes for made in layer.steps[:step]} | {block.name for block in layer.weights} | {"X"}
    placed = _placed(layer, ranks)
    outlines = [place.frame() for name, place in placed.items() if place.block and name not in made]
    board.frames(outlines, colour=FAINT, width=1)
    blocks = [(place.block, place.frame()) for name, place in placed.items() if place.block and name in made]
    draw_cuts(board, [_cut(block, area, ranks) for block, area in blocks], _SIZES)
    for x0, y0, x1, _ in (area for block, area in blocks if block.cut == "heads"):
        board.numbers([(x0 + (third + 0.5) / 3 * (x1 - x0), y0 - 0.17, name) for third, name in enumerate("QKV")])
    _draw_names(board, placed)
    _draw_signs(board, layer, placed, now)
    if now:  # a bold frame around what is made, dotted ones around what it is made from
        board.frames([placed[name].frame(0.05) for name in now.uses], dotted=True)
        board.frames([placed[now.makes].frame(0.05)], colour=_SUM if now.is_sum else INK, width=3)
    board.word(MARGIN, 0.52, "forward →", align="left", weight="bold")
    board.word(MARGIN, 2.28, "← backward", align="left", weight="bold")
    key = "a number: the rank that holds it; grey: whole on every rank"
    board.word(WIDTH - MARGIN, 2.28, key, align="right", size=10)


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
    lengths = _LENGTHS["3D" if "3D" in axes else "4D"]
    widths = [_width(column, lengths) for column in layer.columns]
    room = WIDTH - 2 * MARGIN
    stretch = min(_STRETCH, max(1.0, (room - _GAP * (len(widths) - 1)) / sum(widths)))
    widths = [width * stretch for width in widths]
    gap = min(_GAP, (room - sum(widths)) / (len(widths) - 1))
    left = (WIDTH - sum(widths) - gap * (len(widths) - 1)) / 2
    placed = {}
    for column, width in zip(layer.columns, widths):
        for y, thing in zip(_MIDDLES, (column.forward, column.backward)):
            if isinstance(thing, str):
                placed[thing] = _Place(None, left + width / 2, y)
            else:
                placed[thing.name] = _Place(thing, left + width / 2, y, *_size(thing, ranks, lengths, stretch))
        left += width + gap
    return placed


def _width(column: Column, lengths: dict[str, float]) -> float:
    return max(_PARTS if block.cut == "parts" else lengths[block.axes[1]] for block in column.blocks)


def _size(block: Block, ranks: int, lengths: dict[str, float], stretch: float) -> tuple[float, float]:
    if block.cut == "parts":
        side, across, down = _grid(ranks)
        return down * side, across * side
    return lengths[block.axes[0]], lengths[block.axes[1]] * stretch


def _grid(ranks: int) -> tuple[float, int, int]:
    """Of the parts of a sum: inches for each, how many beside and over each other."""
    return (0.28, 2, 4) if ranks == 8 else (0.43, 1 + (ranks == 4), 1 + (ranks > 1))


def _cut(block: Block, area: Rectangle, ranks: int) -> Cut:
    """The pieces of a block; the ranks in turn own them."""
    owners = list(range(ranks)) * (3 if block.cut == "heads" else 1)
    across = {"columns": ranks, "heads": 3 * ranks, "parts": _grid(ranks)[1]}.get(block.cut, 1)
    return Cut(area, owners if block.cut else (), across, rim=0.03 if block.cut == "parts" else 0.0)


def _draw_names(board: Board, placed: dict[str, _Place]) -> None:
    for name, place in placed.items():
        if not place.block:
            board.word(place.x, place.y + 0.3, "passes")
        elif place.y == _MIDDLES[0]:
            rows, columns = place.block.shape
            board.word(place.x, place.y + 0.72, name)
            board.word(place.x, place.y + 0.9, f"{rows} × {columns}")
        else:
            board.word(place.x, place.y + 0.72, name)


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
            board.word(x, _MIDDLES[0] + 0.4, after.note)
        if after.forward == "f":
            sums[True] = (x, _MIDDLES[1], "Σ")
    happens = now.is_backward if now and now.is_sum else None
    board.numbers(signs + [sign for way, sign in sums.items() if way != happens], size=_SIGNS)
    board.numbers([sign for way, sign in sums.items() if way == happens], size=17, colour=_SUM)


def _right(column: Column, placed: dict[str, _Place]) -> float:
    return max(placed[block.name].frame()[2] for block in column.blocks)


def _left(column: Column, placed: dict[str, _Place]) -> float:
    return min(placed[block.name].frame()[0] for block in column.blocks)
