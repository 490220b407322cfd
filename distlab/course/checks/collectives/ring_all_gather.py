"""Exercise ring_all_gather: after n − 1 steps each rank holds all chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.collectives import rings
from distlab.course.checks.collectives.coding import UNTOUCHED, coded
from distlab.course.exercise import Exercise, Misconception
from distlab.course.trial import Trial


def check_ring_all_gather(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries ``ring_all_gather`` on 3, 2, 4, 5 and 1 ranks, with lengths that do and don't divide."""
    rings.check_half(_HALF, coded, learners, trial)
    return (
        "every rank has all chunks in their places, after n − 1 messages of one chunk to the neighbour; "
        "on 1 to 5 ranks, with lengths that divide, that don't, and that are below n"
    )


def _scattered(rows: rings.Rows) -> rings.Rows:
    """What each rank holds before the gather: chunk (r + 1) mod n of its row, and nothing in the others."""
    before = [torch.full_like(row, UNTOUCHED) for row in rows]
    for left, own in zip(rings.own_chunks(before), rings.own_chunks(rows)):
        left.copy_(own)
    return before


def _gathered(before: rings.Rows) -> rings.Rows:
    """The whole tensor on every rank, each chunk as the rank has it that holds it."""
    own = rings.own_chunks(before)
    return [torch.cat(own[-1:] + own[:-1])] * len(own)


def _beliefs(before: rings.Rows, after: rings.Rows) -> dict[str, rings.Rows]:
    steps = len(before) - 1
    return {
        "wrong-start": rings.turn(before, 0, adds=False, steps=steps),
        "not-forwarded": _not_forwarded(_gathered(before)[0], len(before)),
        "added": rings.turn(before, 1, adds=True, steps=steps),
    }


def _not_forwarded(whole: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """By rank: its own chunk in its place and its left neighbour's in all others, where all have the same size."""
    if len(whole) % ranks:
        return []
    chunks = whole.tensor_split(ranks)
    own = [(rank + 1) % ranks for rank in range(ranks)]
    return [
        torch.cat([chunks[own[rank] if chunk == own[rank] else rank] for chunk in range(ranks)])
        for rank in range(ranks)
    ]


_MISCONCEPTIONS = (
    Misconception("not-in-place", "x is as it was: receive into the chunks of x itself."),
    Misconception("few", "One chunk never arrived: on {ranks} ranks a ring takes {ranks} − 1 steps."),
    Misconception(
        "wrong-start",
        "It starts with chunk r, which is not complete: the chunk that rank r holds is chunk (r + 1) mod n.",
    ),
    Misconception("not-forwarded", "Each step sends the rank's own chunk again; what came a step ago is to go on."),
    Misconception("added", "What arrives was added to what stood there; a finished chunk is to replace it."),
    *rings.SHARED,
)

_HALF = rings.Half(
    _MISCONCEPTIONS,
    first=1,
    adds=False,
    start=_scattered,
    finish=_gathered,
    view=list,
    where="in x",
    beliefs=_beliefs,
)

RING_ALL_GATHER = Exercise(
    "ring_all_gather",
    check_ring_all_gather,
    _MISCONCEPTIONS,
    hints=(
        "parts = x.tensor_split(n) gives windows into x, so that a chunk received into parts[c] stands in x. "
        "The loop is that of ring_reduce_scatter, with every chunk's number one higher, and without adding.",
        "At step s send parts[(r + 1 - s) % n] to the right with isend, receive parts[(r - s) % n] from the left, "
        "and wait for the isend. What you received is what you send at the next step.",
    ),
)
