"""Data parallel, one step: replicate, split, compute, synchronise, update, on real digits and with the two mistakes."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
import torch

from distlab.demos.one_step import CLASS, LEARNING_RATE, NUM_ROWS, Column, Step, columns_of, on_ranks, times_too_large
from distlab.show.board import MARGIN, Board
from distlab.show.look import MID, RULE, SERIES, TEXT, look_of_message, okabe_ito
from distlab.show.marks import Rectangle
from distlab.show.panel import Panel, slider, switch

NUM_STEPS = 5
_NAMES = ("0 before", "1 replicate", "2 split", "3 compute", "4 synchronise", "5 update")
_KINDS = ("weights", "weights", "12 rows", "gradient", "gradient", "weights")
_RIGHT = ("different", "same", "", "different", "same", "same")  # what ranks should be
_MESSAGES = {1: "broadcast", 4: "all_reduce"}  # by the column that they make
_HEIGHT, _TOP, _ROWS = 4.95, 0.95, 2.85  # inches: of the picture, above its rows, of all of them
_BETWEEN = 0.2  # inches between two columns, for what is sent
_WIDTHS = (1.15, 1.25, 1.6, 1.25, 1.6, 1.34)  # inches of the columns
_SMALL = 12.5  # points
_GROUND = 0.17  # of black: what lies under the digits
_WRONG = okabe_ito["vermillion"]


def _edges() -> list[tuple[float, float]]:
    """Where each column begins and ends, in inches."""
    edges, x = [], 0.94
    for number, width in enumerate(_WIDTHS):
        x += _BETWEEN if number in _MESSAGES else 0.0
        edges.append((x, x + width))
        x += width
    return edges


_EDGES = _edges()
_RIGHT_EDGE = _EDGES[-1][1]


def data_parallel(ranks: int = 4, forget_to_divide: bool = False, forget_to_broadcast: bool = False) -> Panel:
    """One step of SGD on 2 to 4 ranks, to play through, beside what one process gets; with either mistake, if asked.

    mlp(64, 64, 10) in float64 learns 12 digits, which 2, 3 and 4 ranks share equally. The step is lab 02's, taken on
    real ranks while the panel is made. Raises RankError if they fail, and NotFinished where lab 02 has neither been
    written nor a solution.
    """
    for number in (1, 2, 3, 4):
        on_ranks(number)
    controls = {
        "ranks": slider("ranks W", 2, 4, ranks),
        "forget_to_divide": switch("forget to divide", forget_to_divide),
        "forget_to_broadcast": switch("forget to broadcast", forget_to_broadcast),
    }
    return Panel(draw, controls, num_steps=lambda **_: NUM_STEPS)


def draw(ranks: int, forget_to_divide: bool, forget_to_broadcast: bool, step: int) -> Board:
    """The picture after so many of the five parts."""
    real = on_ranks(ranks, not forget_to_divide, not forget_to_broadcast)
    columns = columns_of(ranks, forget_to_divide, forget_to_broadcast)
    forgotten = ["divide"] * forget_to_divide + ["broadcast"] * forget_to_broadcast
    mistake = ", forgot to " + " and to ".join(forgotten) if forgotten else ""
    board = Board(f"Data parallel on {ranks} ranks, {_NAMES[step]}{mistake}", _HEIGHT)
    pitch = _ROWS / (ranks + 1)
    below = _TOP + _ROWS + 0.27
    _draw_grid(board, ranks, step, pitch)
    shown = {number: column for number, column in columns.items() if number <= step}
    _draw_columns(board, shown, pitch)
    _draw_messages(board, ranks, step, not forget_to_broadcast, pitch)
    for number, column in shown.items():
        _draw_verdict(board, number, column, times_too_large(real) if number == 4 else None, below)
    if step >= 2:
        _draw_digits(board, real, pitch)
        board.word(_middle(2), below, "each row\non one rank", _SMALL)
    _draw_legend(board, below + 0.48)
    board.say(*_words(real, columns, (forget_to_divide, forget_to_broadcast), step))
    return board


def _draw_grid(board: Board, ranks: int, step: int, pitch: float) -> None:
    """Names of rows and columns, a dotted box for what is not there yet, a frame around what happens now."""
    middles = [_TOP + (row + 0.5) * pitch for row in range(ranks + 1)]
    for row, y in enumerate(middles):
        board.word(MARGIN, y, f"rank {row}" if row < ranks else "one\nprocess", align="left")
    for number, (name, kind) in enumerate(zip(_NAMES, _KINDS, strict=True)):
        colour, weight = TEXT if number <= step else MID, "bold" if number == step else ""
        board.word(_middle(number), 0.66, f"{name}\n{kind}", colour=colour, weight=weight)
    line = _TOP + ranks * pitch
    board.lines([(MARGIN, line, _RIGHT_EDGE, line)], MID)
    waiting = [number for number in range(len(_NAMES)) if number > step]
    board.frames([_box(number, y, pitch) for number in waiting for y in middles], RULE, 1.0, dotted=True)
    left, right = _EDGES[step]
    board.frames([(left, 0.42, right, _TOP + (ranks + 1) * pitch + 0.55)], width=1.5)


def _middle(column: int) -> float:
    return sum(_EDGES[column]) / 2


def _box(column: int, y: float, pitch: float) -> Rectangle:
    half = pitch / 2 - 0.03
    return _EDGES[column][0] + 0.06, y - half, _EDGES[column][1] - 0.06, y + half


def _draw_columns(board: Board, columns: dict[int, Column], pitch: float) -> None:
    """One look for each hash of a column; the first look is that of what one process has."""
    boxes = defaultdict(list)
    for number, column in columns.items():
        known = list(dict.fromkeys([column.hashes[-1], *column.hashes]))
        for row, (short, value) in enumerate(zip(column.hashes, column.numbers, strict=True)):
            y, look = _TOP + (row + 0.5) * pitch, SERIES[known.index(short)].plain
            boxes[look].append(_box(number, y, pitch))
            board.word(_middle(number), y, f"{short}\n{_number(value)}", colour=look.ink)
    for look, rectangles in boxes.items():
        board.boxes(rectangles, look)


def _draw_messages(board: Board, ranks: int, step: int, broadcasts: bool, pitch: float) -> None:
    """A bar beside all ranks that a collective joins, left of what it gives them; a dotted one where it is missing."""
    y0, y1 = _TOP + 0.03, _TOP + ranks * pitch - 0.03
    for column, kind in _MESSAGES.items():
        x = _EDGES[column][0] - _BETWEEN / 2
        bar = (x - 0.06, y0, x + 0.06, y1)
        if step >= column and (broadcasts or kind != "broadcast"):
            board.boxes([bar], look_of_message(kind).plain)
        elif step >= column:
            board.frames([bar], _WRONG, 1.5, dotted=True)


def _draw_verdict(board: Board, number: int, column: Column, ratio: float | None, y: float) -> None:
    """Whether ranks are the same, and whether they have what one process has; what is wrong is in capitals."""
    is_wrong = column.verdict != _RIGHT[number] or (number not in (0, 3) and not column.equals_one_process)
    lines = [column.verdict if column.verdict == _RIGHT[number] else column.verdict.upper()]
    if number not in (0, 3):
        wrong = f"{ratio:.3g} × too large" if ratio else "≠ one process"
        lines.append("= one process" if column.equals_one_process else wrong)
    board.word(_middle(number), y, "\n".join(lines), _SMALL, colour=_WRONG if is_wrong else TEXT)


def _draw_digits(board: Board, step: Step, pitch: float) -> None:
    """Each rank's rows; a frame around every five. They lie on grey, which does not shine on a dark page."""
    shards = [*step.images, torch.cat(step.images)]
    labels = [*step.labels, sum(step.labels, [])]
    frames = []
    for row, (images, digits) in enumerate(zip(shards, labels, strict=True)):
        y = _TOP + (row + 0.5) * pitch
        side = min(0.42, pitch - 0.12, (_EDGES[2][1] - _EDGES[2][0] - 0.1) / len(digits))
        pixels = np.pad(images.reshape(-1, 8, 8).numpy(), ((0, 0), (0, 0), (0, 1)))  # a free column between digits
        x0 = _middle(2) - side * len(digits) / 2
        place = (x0, y - side / 2, x0 + side * len(digits), y + side / 2)
        board.image(_GROUND + (1 - _GROUND) * np.hstack(list(pixels)), place)
        fives = [x0 + side * place for place, digit in enumerate(digits) if digit == CLASS]
        frames += [(x - 0.02, y - side / 2 - 0.02, x + side - 0.02, y + side / 2 + 0.02) for x in fives]
    board.frames(frames, okabe_ito["blue"], 2.0)


def _draw_legend(board: Board, top: float) -> None:
    def five(x: float, y: float) -> None:
        board.frames([(x + 0.04, y - 0.09, x + 0.22, y + 0.09)], okabe_ito["blue"], 2.0)

    fills = {"as one process has it": SERIES[0]}
    fills |= {kind.replace("_", "-"): look_of_message(kind).plain for kind in _MESSAGES.values()}
    board.legend(MARGIN, top, {name: partial(board.patch, look) for name, look in fills.items()} | {"a five": five})
    board.word(MARGIN, top + 0.27, "in a box: a hash of all 4,810 numbers, and the bias of class 5", align="left")


def _number(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


def _words(step: Step, columns: dict[int, Column], mistakes: tuple[bool, bool], number: int) -> list[str]:
    """What this part did, and whether it is right."""
    forgets_to_divide, forgets_to_broadcast = mistakes
    if number == 2:
        shards = "; ".join(f"rank {rank}: {', '.join(map(str, digits))}" for rank, digits in enumerate(step.labels))
        return [f"Each of the {NUM_ROWS} rows goes to one rank. {shards}.", "Nothing is sent."]
    if number == 5:
        return _words_of_update(step, columns)
    column = columns[number]
    by_rank = ", ".join(_number(value) for value in column.numbers[:-1])
    alone = f"One process: {_number(column.numbers[-1])}."
    bias = f"The bias of class 5, by rank: {by_rank}. {alone}"
    if number == 0:
        return [
            "Each rank has made a model from a seed of its own; rank 0 and the one process have the same seed.",
            bias,
        ]
    if number == 1 and forgets_to_broadcast:
        return ["The call of replicate is missing: the weights stay different.", bias]
    if number == 1:
        return ["Rank 0's weights are broadcast: all replicas are the same.", bias]
    gradients = f"Of the bias of class 5, by rank: {by_rank}. {alone}"
    if number == 3:
        what = "Each rank has the gradient of its own rows: they differ, as they should."
        return [what, gradients, "It is negative where there are fives: the step will raise that bias."]
    what = "summed, and nobody divides" if forgets_to_divide else "averaged, each weighted by its number of rows"
    return [f"The ranks' gradients are {what}.", gradients, _against(step)]


def _against(step: Step) -> str:
    ratio = times_too_large(step)
    if ratio is None:
        return "They are no multiple of one process's gradient: they were taken at different weights."
    return f"All 4,810 numbers {'equal' if round(ratio, 9) == 1 else f'are {ratio:.3g} times'} one process's."


def _words_of_update(step: Step, columns: dict[int, Column]) -> list[str]:
    before, gradient, after = (columns[number].numbers[0] for number in (1, 4, 5))
    by_rank = ", ".join(_number(value) for value in columns[5].numbers[:-1])
    its_step = f"{_number(before)} − {LEARNING_RATE} × ({_number(gradient)}) = {_number(after)}"
    apart = float((step.held_WSP[:, 4] - step.held_WSP[:1, 4]).abs().max())
    replicas = "are the same" if columns[5].verdict == "same" else f"differ by up to {apart:.3f}"
    equal = "equal" if columns[5].equals_one_process else "do not equal"
    return [
        f"Each rank takes the step by itself. The bias of class 5 on rank 0: {its_step}.",
        f"The replicas {replicas}, and they {equal} one process.",
        f"That bias by rank: {by_rank}. One process: {_number(columns[5].numbers[-1])}.",
    ]
