"""Data parallel, one step: replicate, split, compute, synchronise, update, on real digits and with the two mistakes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from distlab.demos.one_step import CLASS, LEARNING_RATE, NUM_ROWS, Column, Step, columns_of, on_ranks, times_too_large
from distlab.show.board import Board
from distlab.show.look import FAINT, INK, MID, SERIES, WIDTH, okabe_ito
from distlab.show.panel import Panel, slider, switch

NUM_STEPS = 5
_NAMES = ("0 before", "1 replicate", "2 split", "3 compute", "4 synchronise", "5 update")
_KINDS = ("weights", "weights", "12 rows", "gradient", "gradient", "weights")
_RIGHT = ("different", "same", "", "different", "same", "same")  # what ranks should be
_HEIGHT, _TOP, _BOTTOM = 4.1, 0.9, 0.72  # inches: of the picture, above and below its rows
_EDGES = (1.1, 2.32, 3.54, 5.66, 6.94, 8.26, WIDTH - 0.05)


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
    pitch = (_HEIGHT - _TOP - _BOTTOM) / (ranks + 1)
    _draw_grid(board, ranks, step, pitch)
    shown = {number: column for number, column in columns.items() if number <= step}
    _draw_columns(board, shown, pitch)
    for number, column in shown.items():
        _draw_verdict(board, number, column, times_too_large(real) if number == 4 else None)
    if step >= 2:
        _draw_digits(board, real, pitch)
    _draw_legend(board)
    board.say(*_words(real, columns, (forget_to_divide, forget_to_broadcast), step))
    return board


def _draw_grid(board: Board, ranks: int, step: int, pitch: float) -> None:
    middles = [_TOP + (row + 0.5) * pitch for row in range(ranks + 1)]
    for row, y in enumerate(middles):
        board.word(0.12, y, f"rank {row}" if row < ranks else "one process", align="left")
    for number, (name, kind) in enumerate(zip(_NAMES, _KINDS, strict=True)):
        x = (_EDGES[number] + _EDGES[number + 1]) / 2
        weight, colour = "bold" if number == step else "", INK if number <= step else MID
        _stack(board, x, 0.64, name, kind, weight=weight, colour=colour)
    board.lines([(0.12, _TOP + ranks * pitch, _EDGES[-1], _TOP + ranks * pitch)], INK)
    waiting = [number for number in range(len(_NAMES)) if number > step]
    board.frames([_box(number, y, pitch) for number in waiting for y in middles], FAINT, 1.0, dotted=True)
    board.frames([(_EDGES[step] + 0.02, 0.4, _EDGES[step + 1] - 0.02, _HEIGHT - 0.28)], INK, 1.5)


def _box(column: int, y: float, pitch: float) -> tuple[float, float, float, float]:
    half = min(0.3, pitch / 2 - 0.04)
    return _EDGES[column] + 0.07, y - half, _EDGES[column + 1] - 0.07, y + half


def _draw_columns(board: Board, columns: dict[int, Column], pitch: float) -> None:
    """One look for each hash of a column; the first look is that of what one process has."""
    frames, flags = [], defaultdict(list)
    for number, column in columns.items():
        known = list(dict.fromkeys([column.hashes[-1], *column.hashes]))
        for row, (short, value) in enumerate(zip(column.hashes, column.numbers, strict=True)):
            y = _TOP + (row + 0.5) * pitch
            x0, y0, x1, y1 = _box(number, y, pitch)
            frames.append((x0, y0, x1, y1))
            flags[SERIES[known.index(short)]].append((x0, y0, x0 + 0.28, y1))
            _stack(board, (x0 + 0.28 + x1) / 2, y, short, _number(value))
    for look, rectangles in flags.items():
        board.boxes(rectangles, look)
    board.frames(frames, INK, 0.8)


def _draw_verdict(board: Board, number: int, column: Column, ratio: float | None) -> None:
    """Whether ranks are the same, and whether they have what one process has; what is wrong is in capitals."""
    is_wrong = column.verdict != _RIGHT[number] or (number not in (0, 3) and not column.equals_one_process)
    lines = [column.verdict if column.verdict == _RIGHT[number] else column.verdict.upper()]
    if number not in (0, 3):
        wrong = f"{ratio:.3g} × too large" if ratio else "≠ one process"
        lines.append("= one process" if column.equals_one_process else wrong)
    colour = okabe_ito["vermillion"] if is_wrong else INK
    _write_below(board, number, *lines, colour=colour)


def _write_below(board: Board, column: int, *lines: str, colour: str = INK) -> None:
    x, y = (_EDGES[column] + _EDGES[column + 1]) / 2, _HEIGHT - _BOTTOM + 0.22
    _stack(board, x, y, *lines, size=10, colour=colour, weight="bold" if colour != INK else "")


def _stack(board: Board, x: float, y: float, *lines: str, **style) -> None:
    """Lines of text, one under the other, their middle at ``y``."""
    for number, line in enumerate(lines):
        board.word(x, y + 0.19 * (number - (len(lines) - 1) / 2), line, **style)


def _draw_digits(board: Board, step: Step, pitch: float) -> None:
    """Each rank's rows; a frame around every five."""
    shards = [*step.images, torch.cat(step.images)]
    labels = [*step.labels, sum(step.labels, [])]
    for row, (images, digits) in enumerate(zip(shards, labels, strict=True)):
        y = _TOP + (row + 0.5) * pitch
        side = min(0.36, pitch - 0.12, (_EDGES[3] - _EDGES[2] - 0.14) / len(digits))
        pixels = np.pad(images.reshape(-1, 8, 8).numpy(), ((0, 0), (0, 0), (0, 1)))  # a white line between digits
        x0 = (_EDGES[2] + _EDGES[3] - side * len(digits)) / 2
        board.image(np.hstack(list(pixels)), (x0, y - side / 2, x0 + side * len(digits), y + side / 2))
        fives = [x0 + side * place for place, digit in enumerate(digits) if digit == CLASS]
        frames = [(x - 0.02, y - side / 2 - 0.02, x + side - 0.03, y + side / 2 + 0.02) for x in fives]
        board.frames(frames, okabe_ito["vermillion"], 1.5)
    _write_below(board, 2, "each row on one rank", "(framed: a five)")


def _draw_legend(board: Board) -> None:
    y = _HEIGHT - 0.14
    board.boxes([(0.12, y - 0.08, 0.4, y + 0.08)], SERIES[0])
    text = "as one process has it. In each box: a hash of all 4,810 numbers, and the bias of class 5"
    board.word(0.5, y, text, size=10, align="left")


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
