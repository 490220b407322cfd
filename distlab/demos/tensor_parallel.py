"""Tensor parallelism, matrix by matrix: which block lives on which rank, and which sum happens when."""

from __future__ import annotations

from distlab.demos.tensor_picture import draw_layer
from distlab.demos.tensor_steps import LAYERS, PLACES, WIDTH, Block, Layer, layer, mine
from distlab.show import look
from distlab.show.board import MARGIN, Board
from distlab.show.panel import Panel, choice

RANKS = (1, 2, 4, 8)
# GPT-3's b, s and h, and bytes a number: Narayanan et al., arXiv 2104.04473, and Brown et al., arXiv 2005.14165.
REAL_NUMBERS, REAL_BYTES = 1 * 2048 * 12288, 2
_HEIGHT = 4.96


def tensor_parallel(what: str = "MLP", ranks: int = 4) -> Panel:
    """Steps through a layer that is cut over ``ranks`` ranks, forward and backward, one matrix at a time.

    ``what`` is "column", "row", "MLP" or "attention", ``ranks`` 1, 2, 4 or 8. A matrix is drawn for 8 places and width
    16, with 8 heads; bytes are given for GPT-3's b = 1, s = 2,048, h = 12,288 in 16 bits.
    """
    return Panel(
        draw,
        {
            "what": choice("cut", list(LAYERS), what),
            "ranks": choice("ranks t", {str(number): number for number in RANKS}, ranks),
        },
        num_steps=lambda what, ranks: len(layer(what).steps),
    )


def sent(numbers: float, ranks: int) -> float:
    """What a rank sends of ``numbers`` in a ring all-reduce: 2(t − 1)/t of them (Thakur et al. 2005)."""
    return 2 * (ranks - 1) / ranks * numbers


def real_megabytes(ranks: int, all_reduces: int = 1) -> float:
    """MB that a rank sends for some of a layer's all-reduces at GPT-3's size, b·s·h numbers each."""
    return all_reduces * sent(REAL_NUMBERS, ranks) * REAL_BYTES / 1e6


def draw(what: str, ranks: int, step: int) -> Board:
    """The picture after ``step`` steps."""
    cut = layer(what)
    now = cut.steps[step - 1] if step else None
    on = f"{ranks} rank" + "s" * (ranks > 1)
    happens = now.title if now else "before the first step"
    board = Board(f"{what} on {on}, step {step} of {len(cut.steps)}: {happens}", _HEIGHT)
    draw_layer(board, cut, ranks, step)
    forward, backward = cut.all_reduces(step)
    so_far = f"{forward} forward, {backward} backward"
    megabytes = _mb(real_megabytes(ranks, forward + backward))
    bottom = _HEIGHT - 0.18
    board.word(MARGIN, bottom, f"all-reduces: {so_far}", align="left", weight="bold")
    board.word(look.WIDTH - MARGIN, bottom, f"each rank sends, at GPT-3's size: {megabytes}", align="right")
    board.say(now.words if now else _beginning(cut), _who_holds_what(cut, ranks), _count(so_far, ranks))
    if not step:
        board.say("GPT-3's size is b · s · h = 1 · 2,048 · 12,288 numbers, of 16 bits each.")
    if what in ("MLP", "attention") and step == len(cut.steps):
        all_four = _mb(real_megabytes(ranks, 4))
        board.say(f"A layer has an attention and an MLP: 4 all-reduces, for GPT-3 {all_four} from each rank.")
    return board


def _mb(megabytes: float) -> str:
    return f"{megabytes:,.1f} MB" if megabytes else "0 MB"


def _beginning(cut: Layer) -> str:
    names = " and of ".join(block.name for block in cut.weights)
    held = "cut by columns" if cut.columns[0].forward.cut else "whole on every rank"
    return f"X is {held}. Each rank holds its own part of {names}. Nothing has been computed yet."


def _who_holds_what(cut: Layer, ranks: int) -> str:
    rank = min(1, ranks - 1)
    held = [_held(block, rank, ranks) for block in cut.weights]
    return f"Rank {rank} holds {' and '.join(held)} counted from 0."


def _held(block: Block, rank: int, ranks: int) -> str:
    rows, columns = block.shape
    what = {
        "rows": f"rows {_range(rows, rank, ranks)} of {block.name}",
        "columns": f"columns {_range(columns, rank, ranks)} of {block.name}",
        "heads": f"columns {_range(columns // 3, rank, ranks)} of each of Q, K and V",
    }[block.cut]
    return f"{what}, {_by(block.shape_on(rank, ranks))},"


def _range(size: int, rank: int, ranks: int) -> str:
    held = mine(size, rank, ranks)
    return f"{held.start}–{held.stop - 1}"


def _by(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def _count(so_far: str, ranks: int) -> str:
    here = f"2(t − 1)/t · {PLACES * WIDTH} = {sent(PLACES * WIDTH, ranks):g} numbers"
    return f"All-reduces: {so_far}; in each a rank sends {here}, for GPT-3 {_mb(real_megabytes(ranks))}."
