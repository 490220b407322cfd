"""Ring all-reduce, step by step: what each rank's chunks hold, what moves now, and the bytes so far against the hub."""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from distlab.demos.course import built_in
from distlab.ranks.launch import run
from distlab.show.board import HANDLE, MARGIN, Board
from distlab.show.letters import width_of
from distlab.show.look import FAINT, LETTERS, MID, WIDTH, Look, look_of_message, okabe_ito
from distlab.show.marks import Rectangle
from distlab.show.panel import Panel, slider

RING, HUB = "ring, each rank", "hub, through rank 0"
_MOST_RANKS = 8
_HEIGHT = 4.85
_LEFT, _TOP, _GRID, _ROWS = 0.86, 1.08, 6.5, 2.9  # inches: beside and over the grid; its width and height
_GAP = 0.16  # inches from row to row, for arrows
_SIZES = (LETTERS, 12.5, 11.0, 10.0)  # points of the numbers in chunks, as many as fit
_BARS = 7.65  # inches: where the bars begin
_LONGEST = WIDTH - MARGIN - _BARS  # inches: of a bar, for what passes a hub of the most ranks
_PARTIAL, _WHOLE = Look(FAINT, ""), Look(okabe_ito["sky blue"], "")
_MOVES = look_of_message("send")


class Step(NamedTuple):
    """One moment: by rank, the value of each of its chunks, and the chunk that it sends next (None at the end)."""

    values: list[list[float]]
    sends: list[int | None]


def ring_all_reduce(ranks: int = 4) -> Panel:
    """Steps through lab 01's ring, as real ranks have gone through it: each contributes another power of ten, so that
    the digits of a number say whose contributions are in it."""
    controls = {"ranks": slider("ranks n", 2, _MOST_RANKS, ranks)}
    return Panel(draw, controls, num_steps=lambda ranks: 2 * (ranks - 1))


@cache
def steps_of(ranks: int) -> list[Step]:
    """What the buffers of real ranks held before each step of the ring, and at its end."""
    by_rank = run(_watched, built_in("collectives").ring_all_reduce, ranks=ranks, record=False).values
    return [Step([held for held, _ in step], [sent for _, sent in step]) for step in zip(*by_rank)]


def _watched(ring_all_reduce) -> list[tuple[list[float], int | None]]:
    """On a rank: one number a chunk; notes them whenever a chunk is sent, and at the end."""
    ranks, isend = dist.get_world_size(), dist.isend
    x = torch.full((ranks,), 10.0 ** dist.get_rank(), dtype=torch.float64)
    seen = []

    def noting(chunk, *args, **settings):
        seen.append((x.tolist(), (chunk.data_ptr() - x.data_ptr()) // x.element_size()))
        return isend(chunk, *args, **settings)

    dist.isend = noting
    ring_all_reduce(x)
    return [*seen, (x.tolist(), None)]


def bytes_so_far(ranks: int, step: int) -> dict[str, float]:
    """After ``step`` steps, in units of the tensor's bytes S: what all ranks have sent, and what has come to or gone
    from the busiest; of the hub's 2(n − 1) messages, each of S, ``step`` have been sent then.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms": 2(n − 1)/n · S a rank.
    """
    return {"in all": float(step), RING: step / ranks, HUB: float(step)}


def draw(ranks: int, step: int) -> Board:
    """The picture of the moment before step ``step`` (from 0), or of the end."""
    now, last = steps_of(ranks)[step], 2 * (ranks - 1)
    phase = "done" if step == last else "reduce-scatter" if step < ranks - 1 else "all-gather"
    board = Board(f"Ring all-reduce, {ranks} ranks: {step} of {last} steps done; {_next(phase)}", _HEIGHT)
    _draw_grid(board, now)
    _draw_moves(board, now)
    _draw_bars(board, ranks, step)
    _draw_legend(board)
    complete = [_complete(values, ranks) for values in now.values]
    board.say(*_what_moves(ranks, step, phase))
    board.say(f"Complete chunks, by rank: {', '.join(str(len(chunks)) for chunks in complete)} of {ranks}.")
    sent = bytes_so_far(ranks, step)
    board.say(
        f"Sent so far of a tensor of S bytes: {sent[RING]:.3g} S by each rank, {sent['in all']:g} S in all.",
        *([f"With a hub, all {sent['in all']:g} S would have come to rank 0 or gone from it."] if step else []),
    )
    return board


def _next(phase: str) -> str:
    return "every chunk is complete" if phase == "done" else f"next: {phase}"


def _what_moves(ranks: int, step: int, phase: str) -> list[str]:
    if phase == "done":
        return [f"Every rank holds the sum {'1' * ranks} in every chunk."]
    if phase == "reduce-scatter":
        return [f"Rank r sends chunk (r − {step}) mod {ranks} to the next rank, which adds it to its own."]
    return [f"Rank r sends chunk (r + 1 − {step - ranks + 1}) mod {ranks}, complete, to the next rank, which keeps it."]


def _complete(values: list[float], ranks: int) -> list[int]:
    return [chunk for chunk, value in enumerate(values) if value == int("1" * ranks)]


def _draw_grid(board: Board, now: Step) -> None:
    """A row for each rank, a column for each chunk; what is complete is darker, and bold if that has room."""
    ranks, room = len(now.values), _GRID / len(now.values) - 0.08
    size = next(size for size in _SIZES if size == _SIZES[-1] or width_of("1" * ranks, size) < room - 0.1)
    bold = "bold" if width_of("1" * ranks, size, is_bold=True) < room else ""
    board.word(_LEFT - 0.12, 0.58, "chunk", align="right")
    for chunk in range(ranks):
        x0, _, x1, _ = _box(ranks, 0, chunk)
        board.word((x0 + x1) / 2, 0.58, str(chunk))
    boxes: dict[Look, list] = {_PARTIAL: [], _WHOLE: []}
    for rank, values in enumerate(now.values):
        _, y0, _, y1 = _box(ranks, rank, 0)
        board.word(_LEFT - 0.12, (y0 + y1) / 2, f"rank {rank}", align="right")
        whole = _complete(values, ranks)
        for chunk, value in enumerate(values):
            look, box = _WHOLE if chunk in whole else _PARTIAL, _box(ranks, rank, chunk)
            boxes[look].append(box)
            style = {"colour": look.ink, "weight": bold if chunk in whole else ""}
            board.word((box[0] + box[2]) / 2, (y0 + y1) / 2, f"{value:0{ranks}.0f}", size, **style)
    for look, of_look in boxes.items():
        board.boxes(of_look, look)


def _box(ranks: int, rank: int, chunk: int) -> Rectangle:
    width, pitch = _GRID / ranks, (_ROWS + _GAP) / ranks
    x, y = _LEFT + chunk * width, _TOP + rank * pitch
    return x + 0.03, y, x + width - 0.03, y + pitch - _GAP


def _draw_moves(board: Board, now: Step) -> None:
    """Frames what is sent now; an arrow to the row below, from the last row out at the bottom and in at the top."""
    ranks = len(now.values)
    sent = {rank: _box(ranks, rank, chunk) for rank, chunk in enumerate(now.sends) if chunk is not None}
    arrows = []
    for rank, (x0, _, x1, y1) in sent.items():
        x = (x0 + x1) / 2
        arrows.append((x, y1, x, y1 + _GAP + 0.02))
        if rank == ranks - 1:
            arrows.append((x, _TOP - 0.22, x, _TOP + 0.02))
            is_far_right = x > _LEFT + _GRID - 1.4
            side, align = (-0.12, "right") if is_far_right else (0.12, "left")
            board.word(x + side, y1 + 0.17, "to rank 0", 12.5, align)
            board.word(x + side, _TOP - 0.16, f"from rank {rank}", 12.5, align)
    if sent:
        board.frames(list(sent.values()), _MOVES.colour, 2.5)
        board.arrows(arrows, _MOVES.colour, 2.5, head=3.2)


def _draw_bars(board: Board, ranks: int, step: int) -> None:
    """One scale for all numbers of ranks: it shows how little the ring grows with them, and how much the hub."""
    last, so_far, inch = 2 * (ranks - 1), bytes_so_far(ranks, step), _LONGEST / (2 * (_MOST_RANKS - 1))
    in_the_end = bytes_so_far(ranks, last)
    board.word(_BARS, 0.58, "bytes so far", align="left", weight="bold")
    y = _TOP - 0.08
    for name in (RING, HUB):
        lines = name.replace(", ", ",\n")
        board.word(_BARS, y + 0.12, lines, align="left")
        top, bottom = y + 0.42, y + 0.68
        if so_far[name]:
            board.boxes([(_BARS, top, _BARS + inch * so_far[name], bottom)], _MOVES)
        board.frames([(_BARS, top, _BARS + inch * in_the_end[name], bottom)], MID, 1.0)
        board.word(_BARS, bottom + 0.17, f"{so_far[name]:.3g} of {in_the_end[name]:.3g} S", align="left", weight="bold")
        y += 1.27
    board.word(_BARS, y + 0.14, f"either way, all:\n{step} of {last} S", align="left")


def _draw_legend(board: Board) -> None:
    """What fills and frames mean, and what the digits are."""

    def moves(x: float, y: float) -> None:
        board.frames([(x + 0.02, y - 0.07, x + HANDLE - 0.02, y + 0.07)], _MOVES.colour, 2.5)

    fills = {"a part of the sum": _PARTIAL, "complete": _WHOLE}
    entries = {name: partial(board.patch, look) for name, look in fills.items()} | {"is sent now": moves}
    board.legend(MARGIN, _HEIGHT - 0.42, entries)
    board.word(MARGIN, _HEIGHT - 0.15, "each digit is one rank's contribution, rank 0's the last", align="left")
