"""Exercise recursive_doubling_all_reduce: few messages, all of them long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded
from distlab.course.checks.collectives.traffic import (
    Traffic,
    not_a_hub,
    numbered,
    only_sends,
    traffic_by_case,
    watch,
)
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import RankFailed, Trial

_SHAPES = ((3,), (2, 2))


def all_reduce(recursive_doubling_all_reduce: Callable) -> list[torch.Tensor]:
    """On a rank: each coded tensor after the all-reduce."""
    found = []
    for number, shape in enumerate(_SHAPES):
        x = coded(dist.get_rank(), torch.Size(shape).numel()).reshape(shape)
        with numbered(number):
            recursive_doubling_all_reduce(x)
        found.append(x)
    return found


def check_recursive_doubling(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries the exercise on powers of two, and then on 3 and 6 ranks."""
    for ranks in (2, 4, 8, 3, 6, 1):
        case = f"with {ranks} rank{'s' if ranks > 1 else ''}"
        try:
            run = watch(trial, RECURSIVE_DOUBLING.misconceptions, case, all_reduce, learners, ranks=ranks)
        except RankFailed as failed:
            raise failed.because("beyond") if ranks == 3 else failed from None
        for shape, got in zip(_SHAPES, zip(*run.values)):
            _compare(f"{case} and a tensor of shape {shape}", got, shape)
        for traffic in traffic_by_case(run.recording, [torch.Size(shape).numel() for shape in _SHAPES]):
            _check_traffic(case, traffic)
    return (
        "x holds the sum on every rank after lg n messages a rank, each of the whole tensor, for 1, 2, 4 and 8 ranks, "
        "and after two more steps for 3 and 6"
    )


def _compare(case: str, got: tuple, shape: tuple[int, ...]) -> None:
    ranks, length = len(got), torch.Size(shape).numel()
    power = 1 << ranks.bit_length() - 1
    everyone, paired = list(range(ranks)), list(range(power))

    def sums(by_rank: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [coded_sum(list(contributing), length).reshape(shape) for contributing in by_rank]

    window = 1 << (ranks - 1).bit_length()
    beliefs = {
        "not-in-place": sums([[rank] for rank in everyone]),
        "same-partner": [2.0 ** (power.bit_length() - 2) * pair for pair in sums([[r, r ^ 1] for r in everyone])],
        "left-out": sums([paired if rank < power else [rank] for rank in everyone]),
        "not-returned": sums([everyone if rank < power else [rank] for rank in everyone]),
        "wraps": sums([[(rank - back) % ranks for back in range(window)] for rank in everyone]),
    }
    compare_coded(case, got, sums([everyone] * ranks), beliefs, ranks=ranks, power=power)


def _check_traffic(case: str, traffic: Traffic) -> None:
    only_sends(case, traffic)
    steps = traffic.ranks.bit_length() - 1
    if 1 << steps == traffic.ranks:  # on 3 ranks, all messages are rank 0's
        not_a_hub(case, traffic)
    most = steps if 1 << steps == traffic.ranks else steps + 1
    for rank in range(traffic.ranks):
        sent = len(traffic.sends(rank))
        if sent > most:
            detail = f"expected at most {most} messages from rank {rank}, got {sent}"
            raise Wrong(case, detail, ("many",), ranks=traffic.ranks, steps=steps)


RECURSIVE_DOUBLING = Exercise(
    "recursive_doubling_all_reduce",
    check_recursive_doubling,
    misconceptions=(
        Misconception("not-in-place", "x is as it was: copy the sum into x itself."),
        Misconception("same-partner", "The partner is the same in every round: double the distance after each."),
        Misconception("left-out", "{ranks} is no power of two, and the ranks from {power} on take no part in the sum."),
        Misconception("not-returned", "The ranks from {power} on handed their numbers in and never got the sum back."),
        Misconception(
            "wraps",
            "Some contributions count twice: on {ranks} ranks, partners found by (rank ± d) mod n meet numbers "
            "that they have.",
        ),
        Misconception(
            "beyond",
            "It works on 2, 4 and 8 ranks, and not on 3: rank ^ d may name a rank that is not there.",
        ),
        Misconception(
            "send-first",
            "Partners wait in send for each other: start the send with isend, receive, then wait for it.",
        ),
        Misconception("unwaited", "A rank went on while its isend was under way: wait() for every isend."),
        Misconception("many", "The sums are right, but a rank sends more than {steps} messages a power of two needs."),
        Misconception("hub", "Every message goes through rank 0; here every rank is to work in every round."),
        Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
    ),
    hints=(
        "For a power of two: at distance d = 1, 2, 4, … swap the whole running sum with rank ^ d and add what came. "
        "Send a copy or wait for the isend before you add: the message must not change under way.",
        "Otherwise let p be the largest power of two up to n. Each rank r ≥ p first sends x to r − p, which adds it. "
        "Ranks below p do the rounds among themselves. At the end r − p sends the sum to r.",
    ),
    further=True,
)
