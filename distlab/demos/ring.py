"""Ring all-reduce, step by step: what each rank's chunks hold, what moves now, and the bytes so far against the hub."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist

from distlab.demos.course import built_in
from distlab.ranks.launch import run
from distlab.show.board import Board
from distlab.show.look import FAINT, INK, SERIES, Look, okabe_ito
from distlab.show.panel import Panel, slider

RING, HUB = "ring, each rank", "hub, through rank 0"
_HEIGHT = 4.2
_LEFT, _TOP, _GRID, _ROWS = 0.9, 0.95, 6.0, 2.75  # inches: beside and over the grid; its width and height
_BARS = 7.25  # inches: where the bars begin
_LONGEST = 2.0  # inches: of a bar
_PARTIAL, _WHOLE = Look("#DCEEF9", ""), Look(okabe_ito["sky blue"], "")
_MOVES = okabe_ito["vermillion"]


class Step(NamedTuple):
    """One moment: by rank, the value of each of its chunks, and the chunk that it sends next (None at the end)."""

    values: list[list[float]]
    sends: list[int | None]


def ring_all_reduce(ranks: int = 4) -> Panel:
    """Steps through lab 01's ring, as real ranks have gone through it: each contributes another power of ten, so that
    the digits of a number say whose contributions are in it."""
    controls = {"ranks": slider("ranks n", 2, 8, ranks)}
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
    _draw_bars(board, ranks, step)
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
    return "every chunk is complete everywhere" if phase == "done" else f"next: {phase}"


def _what_moves(ranks: int, step: int, phase: str) -> list[str]:
    if phase == "done":
        return [f"Every rank holds the sum {'1' * ranks} in every chunk."]
    if phase == "reduce-scatter":
        return [f"Rank r sends chunk (r − {step}) mod {ranks} to the next rank, which adds it to its own."]
    return [f"Rank r sends chunk (r + 1 − {step - ranks + 1}) mod {ranks}, complete, to the next rank, which keeps it."]


def _complete(values: list[float], ranks: int) -> list[int]:
    return [chunk for chunk, value in enumerate(values) if value == int("1" * ranks)]


def _draw_grid(board: Board, now: Step) -> None:
    ranks = len(now.values)
    width, height = _GRID / ranks, _ROWS / ranks
    boxes: dict[Look, list] = {_PARTIAL: [], _WHOLE: []}
    frames, arrows = [], []
    for chunk in range(ranks):
        board.word(_LEFT + (chunk + 0.5) * width, _TOP - 0.3, f"chunk {chunk}", size=10 if ranks > 6 else 11)
    for rank, values in enumerate(now.values):
        y = _TOP + rank * height
        board.word(_LEFT - 0.12, y + height / 2, f"rank {rank}", align="right")
        whole = _complete(values, ranks)
        for chunk, value in enumerate(values):
            x = _LEFT + chunk * width
            box = (x + 0.03, y + 0.1 * height, x + width - 0.03, y + 0.9 * height)
            boxes[_WHOLE if chunk in whole else _PARTIAL].append(box)
            weight = "bold" if chunk in whole else None
            board.word(
                x + width / 2, y + height / 2, f"{value:0{ranks}.0f}", size=8.5 if ranks > 6 else 11, weight=weight
            )
            if chunk == now.sends[rank]:
                frames.append(box)
                arrows += _down(x + 0.84 * width, y, height, rank == ranks - 1)
    for look, of_look in boxes.items():
        board.boxes(of_look, look)
    if frames:
        board.frames(frames, _MOVES, 2.5)
        board.arrows(arrows, _MOVES, 2.5)


def _down(x: float, y: float, height: float, is_last: bool) -> list:
    """An arrow to the row below; from the last row out at the bottom, and in at the top."""
    if not is_last:
        return [(x, y + 0.82 * height, x, y + 1.3 * height)]
    return [(x, y + 0.82 * height, x, y + height + 0.2), (x, _TOP - 0.2, x, _TOP + 0.25 * height)]


def _draw_bars(board: Board, ranks: int, step: int) -> None:
    most, sent = 2.0 * (ranks - 1), bytes_so_far(ranks, step)
    board.word(_BARS, _TOP - 0.3, "bytes sent so far", align="left")
    for number, (name, look) in enumerate({RING: SERIES[0], HUB: SERIES[1]}.items()):
        y = _TOP + 0.2 + 0.95 * number
        board.word(_BARS, y, name, align="left")
        board.frames([(_BARS, y + 0.2, _BARS + _LONGEST, y + 0.5)], FAINT, 1.0)
        if sent[name]:
            board.boxes([(_BARS, y + 0.2, _BARS + _LONGEST * sent[name] / most, y + 0.5)], look)
        board.word(_BARS + 0.08, y + 0.7, f"{sent[name]:.3g} S", align="left", colour=INK, weight="bold")
    board.word(_BARS, _TOP + 2.2, f"in the end: {most / ranks:.3g} S and {most:g} S;", align="left", size=10)
    board.word(_BARS, _TOP + 2.45, f"in all {most:g} S, both times", align="left", size=10)
    board.word(
        _LEFT,
        _HEIGHT - 0.2,
        "each digit is one rank's contribution, rank 0's the last; a framed chunk moves now",
        align="left",
        size=10,
    )
