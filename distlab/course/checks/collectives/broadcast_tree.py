"""Exercise broadcast_tree: one rank's tensor reaches all in a logarithm of rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.collectives.coding import coded, compare_coded
from distlab.course.checks.collectives.traffic import (
    Traffic,
    numbered,
    only_sends,
    traffic_by_case,
    watch,
)
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import RankFailed, Trial

_SHAPE = (2, 3)
_LENGTH = 6
_ROOTS = {2: (0, 1), 4: (0, 3, 2), 3: (0, 1, 2), 5: (0, 3), 1: (0,)}


def spread(broadcast_tree: Callable, roots: tuple[int, ...]) -> list[torch.Tensor]:
    """On a rank: its tensor after a broadcast from each of the roots."""
    found = []
    for number, root in enumerate(roots):
        x = coded(dist.get_rank(), _LENGTH).reshape(_SHAPE)
        with numbered(number):
            broadcast_tree(x, root)
        found.append(x)
    return found


def check_broadcast_tree(learners: Callable[[torch.Tensor, int], None], trial: Trial) -> str:
    """Tries ``broadcast_tree`` from several roots on 2, 4, 3, 5 and 1 ranks."""
    for ranks, roots in _ROOTS.items():
        case = f"with {ranks} rank{'s' if ranks > 1 else ''}"
        try:
            run = watch(trial, BROADCAST_TREE.misconceptions, case, spread, learners, roots, ranks=ranks)
        except RankFailed as failed:
            raise failed.because("beyond") if ranks == 3 else failed from None
        cases = [f"{case} and root {root}" for root in roots]
        for case, root, got in zip(cases, roots, zip(*run.values)):
            _compare(case, got, root)
        for case, root, traffic in zip(cases, roots, traffic_by_case(run.recording, [_LENGTH] * len(roots))):
            _check_traffic(case, traffic, root)
    return (
        "every rank holds the root's numbers after the fewest rounds possible, each rank receiving once; "
        "on 1 to 5 ranks, from any root"
    )


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
    sends = [[(rank, m.peer) for m in traffic.sends(rank)] for rank in range(traffic.ranks)]
    received = sorted(peer for sent in sends for _, peer in sent)
    if received != [rank for rank in range(traffic.ranks) if rank != root] or len(traffic.sizes()) > 1:
        raise Wrong(
            case, f"expected one message to every rank but {root}, got messages to ranks {received}", ("again",)
        )
    fewest, took = (traffic.ranks - 1).bit_length(), _rounds(sends, root)
    if took > fewest:
        longest = max(map(len, sends))
        shape = ("flat",) if longest == traffic.ranks - 1 else ("chain",) if longest == 1 else ()
        raise Wrong(case, f"expected {fewest} rounds, got {took}", shape, root=root, took=took, fewest=fewest)


def _rounds(sends: list[list[tuple[int, int]]], root: int) -> int:
    """The rounds that a tree takes, where a rank that has the tensor sends one message a round."""
    arrival, ready = {root: 0}, [root]
    while ready:
        rank = ready.pop()
        for number, (_, peer) in enumerate(sends[rank], start=1):
            arrival[peer] = arrival[rank] + number
            ready.append(peer)
    return max(arrival.values())


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
            "It works on 2 and on 4 ranks, and not on 3: where the partner would be beyond the last rank, "
            "there is nobody to send to.",
        ),
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
        Misconception("again", "The numbers are right, but some rank gets them more than once."),
        Misconception("send-first", "Ranks send to each other before they receive: only who has the tensor may send."),
        Misconception("unwaited", "A rank left while its isend was under way: wait() for every isend."),
        Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
    ),
    hints=(
        "Count from the root: v = (rank - root) % world is 0 on the root, 1 on the next rank, and so on. In the round "
        "of distance d (1, 2, 4, …) those with v < d have the tensor, and v sends to v + d. Whoever has v between d "
        "and 2d - 1 receives.",
        "while d < world: if v < d and v + d < world: send to (rank + d) % world. elif d <= v < 2 * d: receive into x "
        "from (rank - d) % world. Then d *= 2, on every rank.",
    ),
)
