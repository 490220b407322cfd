"""A ring on one process: what each rank holds after it, done right or with one thing done wrong; and how to try one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from distlab.course.checks.collectives.calls import CALLS, UNWAITED, is_slip
from distlab.course.checks.collectives.coding import compare_coded, plain
from distlab.course.checks.collectives.traffic import (
    SERIAL,
    WIDENED,
    Failed,
    check_ring,
    in_place,
    traffic_by_case,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import Trial

Cut = Callable[[torch.Tensor], Sequence[torch.Tensor]]
Rows = list[torch.Tensor]
Place = tuple[int, int]  # (a, b): chunk r + a + b·s at step s

_LENGTHS = {
    3: [[6], [7], [2]],
    2: [[4]],
    4: [[8, 10, 5, 3]],
    5: [[13]],
    1: [[3]],
}  # 3 first: on it mistakes differ most


def turn(
    rows: Sequence[torch.Tensor],
    first: int,
    *,
    adds: bool,
    steps: int,
    left: bool = False,
    cut: Cut | None = None,
    places: tuple[Place, Place] | None = None,
) -> Rows:
    """Returns each rank's row after a ring in which rank r sends its chunk r + ``first`` − s at step s, in place.

    What arrives is added to chunk r + ``first`` − s − 1, or replaces it; ``places`` says which chunks instead. ``left``
    sends to r − 1. ``cut`` is tensor_split unless given. Returns [] where an arriving chunk would not fit or a chunk is
    missing.
    """
    ranks, rows = len(rows), [row.clone() for row in rows]
    parts = [cut(row) if cut else row.tensor_split(ranks) for row in rows]
    if any(len(own) < ranks for own in parts):
        return []
    (a, b), (c, d) = places or ((first, -1), (first - 1, -1))
    for step in range(steps):
        sent = [own[(rank + a + b * step) % ranks].clone() for rank, own in enumerate(parts)]
        for rank, own in enumerate(parts):
            target, arriving = own[(rank + c + d * step) % ranks], sent[(rank + (1 if left else -1)) % ranks]
            if target.shape != arriving.shape:
                return []
            target.copy_(target + arriving if adds else arriving)
    return rows


def own_chunks(rows: Sequence[torch.Tensor]) -> Rows:
    """Chunk (r + 1) mod n of each rank's row."""
    return [row.tensor_split(len(rows))[(rank + 1) % len(rows)] for rank, row in enumerate(rows)]


def blocks(ranks: int) -> dict[str, Cut]:
    """Ways to cut a row that are not tensor_split's, by the misconception behind them."""
    return {
        "remainder": lambda row: [row[chunk * (len(row) // ranks) :][: len(row) // ranks] for chunk in range(ranks)],
        "blocks": lambda row: row.chunk(ranks),
    }


def wrong_chunks(before: Rows, got: Sequence[torch.Tensor], first: int, adds: bool) -> dict[str, str] | None:
    """The fields of "chunks", if sending or adding to other chunks gives exactly what came; at most one on 3 ranks."""
    ranks, right = len(before), ((first, -1), (first - 1, -1))
    others = list(product((-1, 0, 1), (-1, 0, 1)))
    for places in sorted(product(others, others), key=lambda places: sum(p != q for p, q in zip(places, right))):
        rows = turn(before, first, adds=adds, steps=ranks - 1, places=places)
        if rows and places != right and all(map(torch.equal, rows, got)):
            (send, receive), (sent, put) = map(_in_words, right), map(_in_words, places)
            return {"send": send, "receive": receive, "sent": sent, "put": put}
    return None


def _in_words(place: Place) -> str:
    offset, per_step = place
    words = "r" + (f" {'+' if offset > 0 else '−'} {abs(offset)}" if offset else "")
    return words + (f" {'+' if per_step > 0 else '−'} s" if per_step else "")


# --- trying one half of the ring -----------------------------------------------------------------


@dataclass(frozen=True)
class Half:
    """One half of the ring all-reduce.

    ``first``, ``adds``: as in :func:`turn`. ``start`` gives the rows by rank before it, from those that the ranks
    bring, ``finish`` what is to be right after it. ``view`` picks that from the rows, which stands ``where``.
    ``beliefs`` are its own misconceptions, from the rows before and after.
    """

    misconceptions: tuple[Misconception, ...]
    first: int
    adds: bool
    start: Callable[[Rows], Rows]
    finish: Callable[[Rows], Rows]
    view: Callable[[Sequence[torch.Tensor]], Rows]
    where: str
    beliefs: Callable[[Rows, Rows], dict[str, Rows]]


def check_half(half: Half, bring: Callable[[int, int], torch.Tensor], learners: Callable, trial: Trial) -> None:
    """Tries a half on 3, 2, 4, 5 and 1 ranks, with lengths that do and don't divide; raises Wrong.

    Rank r brings ``bring(r, length)``, and then whole numbers in float32.
    """
    for ranks, runs in _LENGTHS.items():
        for lengths in runs:
            drawn = [4 + trial.seed % 20] if ranks == 4 else []
            _try(half, bring, learners, trial, ranks, lengths + drawn)


def _try(half: Half, bring: Callable, learners: Callable, trial: Trial, ranks: int, lengths: list[int]) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    case = f"{on} and {'lengths' if len(lengths) > 1 else 'length'} {', '.join(map(str, lengths))}"
    coded_rows = [half.start([bring(rank, length) for rank in range(ranks)]) for length in lengths]
    plain_rows = half.start([plain(trial.seed, rank, lengths[0]) for rank in range(ranks)])
    befores, cases = [*coded_rows, plain_rows], [f"{on} and length {length}" for length in lengths]
    cases.append(f"{on} and whole numbers in float32")
    try:
        run = watch(trial, half.misconceptions, case, in_place, learners, [(rows,) for rows in befores], ranks=ranks)
    except Failed as failed:
        raise _name_crash(failed, lengths, ranks) from None
    traffics = traffic_by_case(run.recording, [rows[0] for rows in befores])
    rows_by_case = [list(rows) for rows in zip(*run.values)]
    for case, before, after, traffic in zip(cases[:-1], befores, rows_by_case, traffics):
        _compare(half, case, before, after, max(traffic.counts()))
    for case, traffic in zip(cases, traffics):
        check_ring(case, traffic, passes=1)
    compare(cases[-1], half.view(rows_by_case[-1]), half.finish(plain_rows))


def _compare(half: Half, case: str, before: Rows, after: Rows, taken: int) -> None:
    ranks, length = len(before), len(before[0])
    untouched = all(map(torch.equal, before, after))

    def turned(**how) -> Rows:
        return turn(before, half.first, adds=half.adds, **{"steps": ranks - 1, **how})

    beliefs = {
        "not-in-place": before if untouched else [],
        "few": turned(steps=taken) if 0 < taken < ranks - 1 else [],
        "left": turned(left=True),
        **half.beliefs(before, after),
        **{id: turned(cut=cut) for id, cut in blocks(ranks).items()},
    }
    views = {id: half.view(rows) for id, rows in beliefs.items()}
    fields = dict(ranks=ranks, length=length, rest=length % ranks)
    try:
        compare_coded(case, half.view(after), half.finish(before), views, half.where, **fields)
    except Wrong as wrong:
        chunks = None if wrong.believed else wrong_chunks(before, after, half.first, half.adds)
        raise Wrong(case, wrong.detail, ("chunks",), **chunks) if chunks else wrong from None


def _name_crash(failed: Failed, lengths: list[int], ranks: int) -> Wrong:
    """Names a receive of any source, and a crash of lengths that 3 ranks can't share evenly where others went well."""
    cause = failed.error.failures[failed.error.rank]
    if "'tuple' object does not support item assignment" in cause.message:
        return failed.because("tuple")
    if is_slip(failed):
        return failed
    if any(call.kind == "recv" and call.peer is None for calls in failed.calls.by_rank for call in calls):
        return failed.because("no-source")
    if ranks != 3 or lengths[0] % 3 == 0:
        return failed
    return failed.because("short" if lengths[0] < 3 else "uneven")


SHARED = (
    Misconception(
        "chunks",
        "Other chunks travel: at step s, rank r is to send chunk {send} and to receive chunk {receive} (modulo n). "
        "Yours sends chunk {sent}, and what arrives goes into chunk {put}.",
    ),
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
        "outside",
        "Rank {rank} {does} rank {peer}, which is not there: count modulo {ranks}, so that the ring closes.",
    ),
    Misconception(
        "tuple",
        "tensor_split gives a tuple, and its items can't be set, which parts[c] += … tries. Take the chunk out first: "
        "chunk = parts[c], and then chunk += … writes into x.",
    ),
    Misconception("no-source", "It receives from any rank: name the left neighbour, dist.recv(room, left)."),
    Misconception(
        "send-first",
        "Every rank waits in send, and nobody receives: start the send with isend, receive, then wait for it.",
    ),
    Misconception("receive-first", "Every rank waits in recv, and nobody has sent: start the send before it."),
    *CALLS,
    UNWAITED,
    WIDENED,
    SERIAL,
    Misconception("many", "The numbers are right, but a step too many was taken: n − 1 are enough."),
    Misconception(
        "whole", "Whole tensors go around: {ranks} times the bytes of a ring, where each message is one chunk."
    ),
    Misconception("hub", "Every message goes through rank 0, which is kept busy while the other links idle."),
    Misconception("no-ring", "The numbers are right, but on a ring every rank sends to its right neighbour only."),
    Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
)
