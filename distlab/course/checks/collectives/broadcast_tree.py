"""Exercise broadcast_tree: one rank's tensor reaches all in a logarithm of rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.collectives.calls import CALLS, UNWAITED, is_slip
from distlab.course.checks.collectives.coding import coded, compare_coded, plain
from distlab.course.checks.collectives.traffic import (
    WIDENED,
    Failed,
    Traffic,
    in_place,
    not_widened,
    only_sends,
    traffic_by_case,
    watch,
)
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import Trial

_SHAPE = (2, 3)
_LENGTH = 6
_ROOTS = {2: (0, 1), 4: (0, 3, 2), 3: (0, 1, 2), 1: (0,)}


def check_broadcast_tree(learners: Callable[[torch.Tensor, int], None], trial: Trial) -> str:
    """Tries ``broadcast_tree`` from several roots on 1 to 4 ranks, and from one on 5 or 6, 7 or 8, and 9 or 10."""
    larger = [ranks + (trial.seed >> bit) % 2 for bit, ranks in enumerate((5, 7, 9))]
    for ranks, roots in {**_ROOTS, **{ranks: (trial.seed % ranks,) for ranks in larger}}.items():
        _try(learners, trial, ranks, roots)
    return (
        "every rank holds the root's numbers after the fewest rounds possible, each rank receiving once; "
        "on 1 to 4 ranks from any root, and on three larger numbers up to 10 from one"
    )


def _try(learners: Callable, trial: Trial, ranks: int, roots: tuple[int, ...]) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    rows = [coded(rank, _LENGTH).reshape(_SHAPE) for rank in range(ranks)]
    plain_rows = [plain(trial.seed, rank, _LENGTH) for rank in range(ranks)]
    befores, roots = [*(rows for _ in roots), plain_rows], (*roots, roots[-1])
    cases = list(zip(befores, roots))
    try:
        run = watch(trial, BROADCAST_TREE.misconceptions, on, in_place, learners, cases, ranks=ranks)
    except Failed as failed:
        raise _named(failed, ranks) from None
    names = [f"{on} and root {root}" for root in roots]
    for name, root, got in zip(names, roots[:-1], zip(*run.values)):
        _compare(name, got, root)
    for name, root, traffic in zip(names, roots, traffic_by_case(run.recording, [rows[0] for rows in befores])):
        _check_traffic(name, traffic, root)


def _named(failed: Failed, ranks: int) -> Wrong:
    sends, receives, senders = failed.calls.open("send"), failed.calls.open("recv"), failed.calls.senders()
    if failed.error.failures[failed.error.rank].kind == "raised":
        is_beyond = "expects a rank of the group" in failed.error.verdict
        return failed.because("beyond") if is_beyond else _not_a_power(failed, ranks)
    if sends and not receives:
        return failed.because("beyond")
    if ranks > 2 and len(senders) == 1 and receives:
        return failed.because("root-only", sender=senders[0])
    return _not_a_power(failed, ranks)


def _not_a_power(failed: Failed, ranks: int) -> Wrong:
    return failed.because("powers", ranks=ranks) if ranks == 3 and not is_slip(failed) else failed


def _compare(case: str, got: tuple, root: int) -> None:
    ranks = len(got)

    def holding(owners) -> list[torch.Tensor]:
        return [coded(owner, _LENGTH).reshape(_SHAPE) for owner in owners]

    reached = 1 << ranks.bit_length() - 1
    beliefs = {
        "root-ignored": holding([0] * ranks),
        "not-in-place": holding(range(ranks)),
        "power-of-two": holding([root if (rank - root) % ranks < reached else rank for rank in range(ranks)]),
    }
    compare_coded(case, got, holding([root] * ranks), beliefs, root=root, reached=reached, ranks=ranks)


def _check_traffic(case: str, traffic: Traffic, root: int) -> None:
    only_sends(case, traffic)
    not_widened(case, traffic)
    sends = [[m.peer for m in traffic.sends(rank)] for rank in range(traffic.ranks)]
    received = sorted(peer for peers in sends for peer in peers)
    if received != [rank for rank in range(traffic.ranks) if rank != root] or len(traffic.sizes()) > 1:
        raise Wrong(
            case, f"expected one message to every rank but {root}, got messages to ranks {received}", ("again",)
        )
    fewest, took = (traffic.ranks - 1).bit_length(), traffic.steps
    if took > fewest:
        longest = max(map(len, sends))
        shape = "flat" if longest == traffic.ranks - 1 else "chain" if longest == 1 else "idle"
        tree = "; ".join(f"{rank} sends to {', '.join(map(str, peers))}" for rank, peers in enumerate(sends) if peers)
        raise Wrong(
            case, f"expected {fewest} rounds, got {took}: {tree}", (shape,), root=root, took=took, fewest=fewest
        )


BROADCAST_TREE = Exercise(
    "broadcast_tree",
    check_broadcast_tree,
    misconceptions=(
        Misconception("root-ignored", "Rank 0's numbers arrived; rank {root} is the root here."),
        Misconception("not-in-place", "Every rank still holds its own numbers: write what arrives into x itself."),
        Misconception(
            "power-of-two",
            "Only {reached} of {ranks} ranks were reached: the number of ranks need not be a power of two, "
            "so one more round is needed.",
        ),
        Misconception(
            "beyond",
            "It sends where nobody receives: the partner would be beyond the last rank. place + distance must stay "
            "below world.",
        ),
        Misconception(
            "powers",
            "It works on 2 and on 4 ranks, and not on {ranks}: the number of ranks need not be a power of two.",
        ),
        Misconception("root-only", "Only rank {sender} sends: a rank that has received is to send on, too."),
        Misconception(
            "flat",
            "Rank {root} sends to all the others itself, in {took} rounds; let those who have it help, and it takes "
            "{fewest}.",
        ),
        Misconception(
            "chain",
            "The tensor goes from neighbour to neighbour, in {took} rounds; if everybody who has it sends in every "
            "round, it takes {fewest}.",
        ),
        Misconception(
            "idle",
            "It takes {took} rounds where {fewest} would do: some rank has the tensor and stops helping. In each "
            "round, all who have it are to send.",
        ),
        Misconception("again", "The numbers are right, but some rank gets them more than once."),
        Misconception("send-first", "Ranks send to each other before they receive: only who has the tensor may send."),
        *CALLS,
        UNWAITED,
        WIDENED,
        Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
    ),
    hints=(
        "Draw eight dots, numbered from the root: 0 has the tensor. Who has it after one round, two, three? Look at "
        "one round, in which the senders reach over a distance d: below which number do those stand who send, and "
        "between which numbers those who receive?",
        "Let v = (rank - root) % world. In the round of distance d (1, 2, 4, …) those with v < d have the tensor, and "
        "v sends to v + d, if that is below world. Whoever has v between d and 2d - 1 receives, from v - d. To get a "
        "rank from v, go back: rank ± d, modulo world.",
    ),
)
