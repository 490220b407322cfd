"""A reduce-scatter on a ring of three ranks: three sums travel at once, each a rank behind the next."""

from __future__ import annotations

from distlab.show.drawing import LARGE, SMALL, Drawing
from distlab.show.look import SERIES, UNLABELLED

RANKS = 3
_NAMES = "abc"
_CELL, _HIGH, _LEFT, _COLUMN = 79, 40, 128, 264
_TOPS = 54, 176, 298
_WHEN = "start", "after step 0", "after step 1"


def draw() -> Drawing:
    """The drawing."""
    drawing = Drawing(
        920,
        368,
        "Reduce-scatter on a ring of three ranks",
        "Ranks 0, 1 and 2 bring a, b and c, each cut into chunks 0, 1 and 2. At step 0 rank r sends its chunk r to "
        "the right neighbour, which adds it to its own. At step 1 it sends the sum that it has just made. Then rank 0 "
        "holds chunk 1 of a + b + c, rank 1 chunk 2, and rank 2 chunk 0.",
    )
    for rank in range(RANKS):
        drawing.text(_left(rank) + 1.5 * _CELL, 22, f"rank {rank}, brings {_NAMES[rank]}", size=LARGE, bold=True)
    for step, top in enumerate(_TOPS):
        drawing.text(12, top + _HIGH / 2, _WHEN[step], anchor="start")
        for rank in range(RANKS):
            _rank(drawing, rank, step, top)
            if step < RANKS - 1:
                _send(drawing, rank, step, top)
    return drawing


def held(rank: int, chunk: int, steps: int) -> list[int]:
    """Whose parts are in a chunk of a rank after some steps, in the order in which they were added."""
    for step in range(steps):
        if chunk == (rank - step - 1) % RANKS:
            return [*held((rank - 1) % RANKS, chunk, step), rank]
    return [rank]


def _rank(drawing: Drawing, rank: int, steps: int, top: float) -> None:
    """A rank's three chunks: the one that is on its way, or complete, shows by colours whose parts are in it."""
    for chunk in range(RANKS):
        parts, x = held(rank, chunk, steps), _left(rank) + chunk * _CELL
        words = "+".join(f"{_NAMES[part]}{chunk}" for part in parts)
        travels = chunk == (rank - steps) % RANKS
        if not travels:
            drawing.box(x, top, _CELL - 4, _HIGH, UNLABELLED, words, SMALL)
            continue
        width = (_CELL - 4) / len(parts)
        for number, part in enumerate(parts):
            drawing.box(x + number * width, top, width, _HIGH, SERIES[part], f"{_NAMES[part]}{chunk}", SMALL)
        if len(parts) == RANKS:
            drawing.text(x + _CELL / 2 - 2, top + _HIGH + 16, "complete", size=SMALL)


def _send(drawing: Drawing, rank: int, step: int, top: float) -> None:
    """The way of the chunk that leaves, to the right; the last rank's right neighbour is rank 0."""
    chunk = (rank - step) % RANKS
    start = _left(rank) + (chunk + 0.5) * _CELL - 2
    target = (rank + 1) % RANKS
    end = _left(target) + (chunk + 0.5) * _CELL - 2
    level = top + _HIGH + 16 + 18 * rank  # a level each, or one line would seem to go on as another
    colour = SERIES[held(rank, chunk, step)[0]].colour
    drawing.arrow([(start, top + _HIGH + 3), (start, level), (end, level), (end, _TOPS[step + 1] - 4)], colour, 2.5)


def _left(rank: int) -> float:
    return _LEFT + rank * _COLUMN
