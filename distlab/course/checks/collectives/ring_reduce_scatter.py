"""Exercise ring_reduce_scatter: after n − 1 steps each rank holds one chunk, summed over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.collectives import rings
from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded, plain
from distlab.course.checks.collectives.traffic import check_ring, keeping_sends, numbered, traffic_by_case, watch
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Misconception
from distlab.course.trial import RankFailed, Trial


def reduce_scatter(
    ring_reduce_scatter: Callable, lengths: list[int], seed: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """On a rank: each coded tensor and a plain one after the reduce-scatter."""
    rank, found = dist.get_rank(), []
    for number, length in enumerate(lengths):
        x = coded(rank, length)
        with numbered(number):
            ring_reduce_scatter(x)
        found.append(x)
    x = plain(seed, rank, lengths[0])
    with keeping_sends():
        ring_reduce_scatter(x)
    return found, x


def check_ring_reduce_scatter(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries ``ring_reduce_scatter`` on 3, 2, 4, 5 and 1 ranks, with lengths that do and don't divide."""
    for ranks in rings.WORLD_SIZES:
        for lengths in rings.lengths_for(ranks, trial.seed):
            _try(learners, trial, ranks, lengths)
    return (
        "chunk (r + 1) mod n is complete on rank r, with each rank's contribution once, after n − 1 messages of one "
        "chunk to the neighbour; on 1 to 5 ranks, with lengths that divide, that don't, and that are below n"
    )


def _try(learners: Callable, trial: Trial, ranks: int, lengths: list[int]) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    case = f"{on} and {'lengths' if len(lengths) > 1 else 'length'} {', '.join(map(str, lengths))}"
    known = RING_REDUCE_SCATTER.misconceptions
    try:
        run = watch(trial, known, case, reduce_scatter, learners, lengths, trial.seed, ranks=ranks)
    except RankFailed as failed:
        raise rings.name_crash(failed, lengths, ranks) from None
    coded_rows, plain_rows = zip(*run.values)
    for length, rows in zip(lengths, zip(*coded_rows)):
        _compare(f"{on} and length {length}", rows)
    for length, traffic in zip(lengths, traffic_by_case(run.recording, lengths)):
        check_ring(f"{on} and length {length}", traffic, passes=1)
    total = sum(plain(trial.seed, rank, lengths[0]) for rank in range(ranks))
    compare(f"{on} and whole numbers in float32", rings.own_chunks(plain_rows), rings.own_chunks([total] * ranks))


def _compare(case: str, rows: tuple[torch.Tensor, ...]) -> None:
    ranks, length = len(rows), len(rows[0])
    before = [coded(rank, length) for rank in range(ranks)]
    untouched = all(torch.equal(row, other) for row, other in zip(rows, before))
    total = coded_sum(range(ranks), length).tensor_split(ranks)
    shifted = all(torch.equal(row.tensor_split(ranks)[rank], total[rank]) for rank, row in enumerate(rows))
    own_and_left = [row + before[rank - 1] for rank, row in enumerate(before)]
    beliefs = {
        "not-in-place": before if untouched else [],
        "few": [] if untouched else rings.turn(before, 0, adds=True, steps=ranks - 2),
        "other-chunk": rings.turn(before, -1, adds=True, steps=ranks - 1) if shifted else [],
        "overwritten": rings.turn(before, 0, adds=False, steps=ranks - 1),
        "unsummed": [] if shifted else own_and_left,
        "left": rings.turn(before, 0, adds=True, steps=ranks - 1, left=True),
    }
    for id, cut in rings.blocks(ranks).items():
        beliefs[id] = rings.turn(before, 0, adds=True, steps=ranks - 1, cut=cut)
    chunks = {id: rings.own_chunks(rows) for id, rows in beliefs.items()}
    want = rings.own_chunks([coded_sum(range(ranks), length)] * ranks)
    where = "in chunk (r + 1) mod n"
    compare_coded(case, rings.own_chunks(rows), want, chunks, where, ranks=ranks, length=length, rest=length % ranks)


RING_REDUCE_SCATTER = Exercise(
    "ring_reduce_scatter",
    check_ring_reduce_scatter,
    misconceptions=(
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
    ),
    hints=(
        "parts = x.tensor_split(n) gives windows into x: parts[c] += arriving changes x itself. At each of the n − 1 "
        "steps one part goes to the right, and what comes from the left is added to the part one number below.",
        "At step s: chunk = parts[(r - s - 1) % n], and room for it with torch.empty_like(chunk). work = "
        "dist.isend(parts[(r - s) % n], right), then dist.recv into the room from the left, then work.wait(), and "
        "then add the room to chunk.",
    ),
)
