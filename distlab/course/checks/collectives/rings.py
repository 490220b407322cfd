"""A ring on one process: what each rank holds after it, done right or with one thing done wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import RankFailed

Cut = Callable[[torch.Tensor], Sequence[torch.Tensor]]

_LENGTHS = {3: [[6], [7], [2]], 2: [[4]], 4: [[8, 10, 5, 3]], 5: [[13]], 1: [[3]]}


def turn(
    rows: Sequence[torch.Tensor], first: int, *, adds: bool, steps: int, left: bool = False, cut: Cut | None = None
) -> list[torch.Tensor]:
    """Returns each rank's row after a ring in which rank r sends its chunk r + ``first`` − s at step s, in place.

    What arrives is added to chunk r + ``first`` − s − 1, or replaces it. ``left`` sends to r − 1. ``cut`` is
    tensor_split unless given. Returns [] where an arriving chunk would not fit or a chunk is missing.
    """
    ranks, rows = len(rows), [row.clone() for row in rows]
    parts = [cut(row) if cut else row.tensor_split(ranks) for row in rows]
    if any(len(own) < ranks for own in parts):
        return []
    for step in range(steps):
        sent = [own[(rank + first - step) % ranks].clone() for rank, own in enumerate(parts)]
        for rank, own in enumerate(parts):
            target, arriving = own[(rank + first - step - 1) % ranks], sent[(rank + (1 if left else -1)) % ranks]
            if target.shape != arriving.shape:
                return []
            target.copy_(target + arriving if adds else arriving)
    return rows


def own_chunks(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Chunk (r + 1) mod n of each rank's row."""
    return [row.tensor_split(len(rows))[(rank + 1) % len(rows)] for rank, row in enumerate(rows)]


def blocks(ranks: int) -> dict[str, Cut]:
    """Ways to cut a row that are not tensor_split's, by the misconception behind them."""
    return {
        "remainder": lambda row: [row[chunk * (len(row) // ranks) :][: len(row) // ranks] for chunk in range(ranks)],
        "blocks": lambda row: row.chunk(ranks),
    }


def lengths_for(ranks: int, seed: int) -> list[list[int]]:
    """Lengths to try, a list a run; on 3 ranks the even, uneven and short ones apart, so that a crash can be named."""
    drawn = [4 + seed % 20] if ranks == 4 else []
    return [*_LENGTHS[ranks][:-1], _LENGTHS[ranks][-1] + drawn]


WORLD_SIZES = tuple(_LENGTHS)  # 3 first: the fewest on which mistakes can be told apart


def name_crash(failed: RankFailed, lengths: list[int], ranks: int) -> Wrong:
    """Names a crash of lengths that 3 ranks can't share evenly, where those went well that they can."""
    if ranks != 3 or lengths[0] % 3 == 0:
        return failed
    return failed.because("short" if lengths[0] < 3 else "uneven")


SHARED = (
    Misconception(
        "remainder",
        "The chunks have {length} // {ranks} elements each, and the last {rest} of {length} belong to none.",
    ),
    Misconception(
        "blocks",
        "The chunks are cut as x.chunk({ranks}) does, rounded up; use x.tensor_split({ranks}), where sizes differ by "
        "at most one.",
    ),
    Misconception(
        "uneven",
        "It works where 3 ranks share the length evenly, and not where they don't: a chunk that arrives may be longer "
        "or shorter than the one that leaves.",
    ),
    Misconception(
        "short",
        "It works for longer tensors; with fewer elements than ranks some chunks are empty, and that is no error.",
    ),
    Misconception("left", "It sends to the left, with the chunks of a ring that sends to the right, to r + 1."),
    Misconception(
        "send-first",
        "Every rank waits in send, and nobody receives: start the send with isend, receive, then wait for it.",
    ),
    Misconception("receive-first", "Every rank waits in recv, and nobody has sent: start the send before it."),
    Misconception("unwaited", "A rank went on while its isend was under way: wait() for every isend."),
    Misconception("many", "The numbers are right, but a step too many was taken: n − 1 are enough."),
    Misconception(
        "whole", "Whole tensors go around: {ranks} times the bytes of a ring, where each message is one chunk."
    ),
    Misconception("hub", "Every message goes through rank 0, which is kept busy while the other links idle."),
    Misconception("no-ring", "The numbers are right, but on a ring every rank sends to its right neighbour only."),
    Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
)
