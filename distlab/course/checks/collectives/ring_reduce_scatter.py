"""Exercise ring_reduce_scatter: after n − 1 steps each rank holds one chunk, summed over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.collectives import rings
from distlab.course.checks.collectives.coding import coded
from distlab.course.exercise import Exercise, Misconception
from distlab.course.trial import Trial


def check_ring_reduce_scatter(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries ``ring_reduce_scatter`` on 3, 2, 4, 5 and 1 ranks, with lengths that do and don't divide."""
    rings.check_half(_HALF, coded, learners, trial)
    return (
        "chunk (r + 1) mod n is complete on rank r, with each rank's contribution once, after n − 1 messages of one "
        "chunk to the neighbour; on 1 to 5 ranks, with lengths that divide, that don't, and that are below n"
    )


def _beliefs(before: rings.Rows, after: rings.Rows) -> dict[str, rings.Rows]:
    ranks = len(before)
    total = sum(before).tensor_split(ranks)
    shifted = all(torch.equal(row.tensor_split(ranks)[rank], total[rank]) for rank, row in enumerate(after))
    return {
        "other-chunk": rings.turn(before, -1, adds=True, steps=ranks - 1) if shifted else [],
        "overwritten": rings.turn(before, 0, adds=False, steps=ranks - 1),
        "unsummed": [] if shifted else [row + before[rank - 1] for rank, row in enumerate(before)],
    }


_MISCONCEPTIONS = (
    Misconception("not-in-place", "x is as it was: add what arrives to the chunks of x itself, chunk += arriving."),
    Misconception("few", "One step is missing: on {ranks} ranks a ring takes {ranks} − 1 steps."),
    Misconception(
        "other-chunk",
        "Another chunk is complete, and this one lacks a rank: step s is to send chunk r − s, so that chunk "
        "(r + 1) mod n ends on rank r.",
    ),
    Misconception("overwritten", "What arrives replaces this rank's part instead of being added to it."),
    Misconception(
        "unsummed",
        "Each rank passes on its own numbers; it is to pass on the sum of what it received and its own.",
    ),
    *rings.SHARED,
)

_HALF = rings.Half(
    _MISCONCEPTIONS,
    first=0,
    adds=True,
    start=list,
    finish=lambda rows: rings.own_chunks([sum(rows)] * len(rows)),
    view=rings.own_chunks,
    where="in chunk (r + 1) mod n",
    beliefs=_beliefs,
)

RING_REDUCE_SCATTER = Exercise(
    "ring_reduce_scatter",
    check_ring_reduce_scatter,
    _MISCONCEPTIONS,
    hints=(
        "parts = x.tensor_split(n) gives windows into x: after chunk = parts[c], chunk += … changes x. At each of the "
        "n − 1 steps one part goes to the right, and what comes from the left is added to the part one number below.",
        "At step s: chunk = parts[(r - s - 1) % n], and room for it with torch.empty_like(chunk). work = "
        "dist.isend(parts[(r - s) % n], right), then dist.recv into the room from the left, then work.wait(), and "
        "then add the room to chunk.",
    ),
)
