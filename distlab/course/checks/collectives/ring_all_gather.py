"""Exercise ring_all_gather: after n − 1 steps each rank holds all chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.collectives import rings
from distlab.course.checks.collectives.coding import UNTOUCHED, coded, compare_coded, plain
from distlab.course.checks.collectives.traffic import check_ring, keeping_sends, numbered, traffic_by_case, watch
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Misconception
from distlab.course.trial import RankFailed, Trial


def gathered(length: int, ranks: int) -> torch.Tensor:
    """The whole tensor: each chunk in the code of the rank that holds it before the gather."""
    chunks = [coded((chunk - 1) % ranks, length).tensor_split(ranks)[chunk] for chunk in range(ranks)]
    return torch.cat(chunks)


def scattered(whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """What a rank holds before the gather: its chunk of the whole, and nothing in the others."""
    x = torch.full_like(whole, UNTOUCHED)
    chunk = (rank + 1) % ranks
    x.tensor_split(ranks)[chunk].copy_(whole.tensor_split(ranks)[chunk])
    return x


def all_gather(ring_all_gather: Callable, lengths: list[int], seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """On a rank: each coded tensor and a plain one after the all-gather."""
    rank, ranks, found = dist.get_rank(), dist.get_world_size(), []
    for number, length in enumerate(lengths):
        x = scattered(gathered(length, ranks), rank, ranks)
        with numbered(number):
            ring_all_gather(x)
        found.append(x)
    x = scattered(plain(seed, 0, lengths[0]), rank, ranks)
    with keeping_sends():
        ring_all_gather(x)
    return found, x


def check_ring_all_gather(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries ``ring_all_gather`` on 3, 2, 4, 5 and 1 ranks, with lengths that do and don't divide."""
    for ranks in rings.WORLD_SIZES:
        for lengths in rings.lengths_for(ranks, trial.seed):
            _try(learners, trial, ranks, lengths)
    return (
        "every rank has all chunks in their places, after n − 1 messages of one chunk to the neighbour; "
        "on 1 to 5 ranks, with lengths that divide, that don't, and that are below n"
    )


def _try(learners: Callable, trial: Trial, ranks: int, lengths: list[int]) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    case = f"{on} and {'lengths' if len(lengths) > 1 else 'length'} {', '.join(map(str, lengths))}"
    known = RING_ALL_GATHER.misconceptions
    try:
        run = watch(trial, known, case, all_gather, learners, lengths, trial.seed, ranks=ranks)
    except RankFailed as failed:
        raise rings.name_crash(failed, lengths, ranks) from None
    coded_rows, plain_rows = zip(*run.values)
    for length, rows in zip(lengths, zip(*coded_rows)):
        _compare(f"{on} and length {length}", rows)
    for length, traffic in zip(lengths, traffic_by_case(run.recording, lengths)):
        check_ring(f"{on} and length {length}", traffic, passes=1)
    compare(f"{on} and whole numbers in float32", plain_rows, [plain(trial.seed, 0, lengths[0])] * ranks)


def _compare(case: str, rows: tuple[torch.Tensor, ...]) -> None:
    ranks, length = len(rows), len(rows[0])
    whole = gathered(length, ranks)
    before = [scattered(whole, rank, ranks) for rank in range(ranks)]
    untouched = all(torch.equal(row, other) for row, other in zip(rows, before))
    beliefs = {
        "not-in-place": before if untouched else [],
        "few": [] if untouched else rings.turn(before, 1, adds=False, steps=ranks - 2),
        "wrong-start": rings.turn(before, 0, adds=False, steps=ranks - 1),
        "not-forwarded": _not_forwarded(whole, ranks),
        "added": [_added(rank, whole, ranks) for rank in range(ranks)],
        "left": rings.turn(before, 1, adds=False, steps=ranks - 1, left=True),
    }
    for id, cut in rings.blocks(ranks).items():
        beliefs[id] = rings.turn(before, 1, adds=False, steps=ranks - 1, cut=cut)
    compare_coded(case, rows, [whole] * ranks, beliefs, ranks=ranks, length=length, rest=length % ranks)


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


def _added(rank: int, whole: torch.Tensor, ranks: int) -> torch.Tensor:
    """What a rank has if it adds what arrives to what was there; the chunk r was added to by nobody before it."""
    return rings.turn([scattered(whole, r, ranks) for r in range(ranks)], 1, adds=True, steps=ranks - 1)[rank]


RING_ALL_GATHER = Exercise(
    "ring_all_gather",
    check_ring_all_gather,
    misconceptions=(
        Misconception("not-in-place", "x is as it was: receive into the chunks of x itself."),
        Misconception("few", "One chunk never arrived: on {ranks} ranks a ring takes {ranks} − 1 steps."),
        Misconception(
            "wrong-start",
            "It starts with chunk r, which is not complete: the chunk that rank r holds is chunk (r + 1) mod n.",
        ),
        Misconception("not-forwarded", "Each step sends the rank's own chunk again; what came a step ago is to go on."),
        Misconception("added", "What arrives was added to what stood there; a finished chunk is to replace it."),
        *rings.SHARED,
    ),
    hints=(
        "parts = x.tensor_split(n) gives windows into x, so that a chunk received into parts[c] stands in x. "
        "The loop is that of ring_reduce_scatter, with every chunk's number one higher, and without adding.",
        "At step s send parts[(r + 1 - s) % n] to the right with isend, receive parts[(r - s) % n] from the left, "
        "and wait for the isend. What you received is what you send at the next step.",
    ),
)
