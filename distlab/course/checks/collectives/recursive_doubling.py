"""Exercise recursive_doubling_all_reduce: few messages, all of them long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distlab.course.checks.collectives.calls import CALLS, UNWAITED, is_slip
from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded, plain
from distlab.course.checks.collectives.traffic import (
    SERIAL,
    WIDENED,
    Failed,
    Traffic,
    in_place,
    not_a_hub,
    not_serial,
    not_widened,
    only_sends,
    traffic_by_case,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import Trial

_SHAPES = ((3,), (2, 2))


def check_recursive_doubling(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries the exercise on powers of two, and then on 3 and 6 ranks."""
    for ranks in (2, 4, 8, 3, 6, 1):
        _try(learners, trial, ranks)
    return (
        "x holds the sum on every rank after lg n swaps of the whole tensor, for 1, 2, 4 and 8 ranks, and after two "
        "more steps for 3 and 6"
    )


def _try(learners: Callable, trial: Trial, ranks: int) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    names = [*(f"{on} and a tensor of shape {shape}" for shape in _SHAPES), f"{on} and whole numbers in float32"]
    befores = [[coded(r, torch.Size(shape).numel()).reshape(shape) for r in range(ranks)] for shape in _SHAPES]
    befores.append([plain(trial.seed, rank, 5) for rank in range(ranks)])
    cases = [(rows,) for rows in befores]
    known = [m for m in RECURSIVE_DOUBLING.misconceptions if m.id != "crossed" or ranks in (2, 4, 8)]
    try:
        run = watch(trial, known, on, in_place, learners, cases, ranks=ranks)
    except Failed as failed:
        beyond = "expects a rank of the group" in failed.error.verdict
        if ranks != 3 or is_slip(failed):
            raise
        raise failed.because("beyond" if beyond else "powers", ranks=ranks) from None
    traffics = traffic_by_case(run.recording, [rows[0] for rows in befores])
    sums_by_case = list(zip(*run.values))
    for name, shape, got, traffic in zip(names, _SHAPES, sums_by_case, traffics):
        _compare(name, got, shape, max(traffic.counts()))
    for name, traffic in zip(names, traffics):
        _check_traffic(name, traffic)
    compare(names[-1], sums_by_case[-1], [sum(befores[-1])] * ranks)


def _swaps(ranks: int, distances: Sequence[int], how: str = "add") -> list[list[int]]:
    """Whose numbers each rank has after swaps at some distances, each rank as often as it counts.

    ``how`` is "add", "replace" (what arrives takes the sum's place) or "first" (everybody sends its first numbers). A
    rank whose partner is not there sits still.
    """
    sums = [[rank] for rank in range(ranks)]
    for distance in distances:
        sent = [[rank] for rank in range(ranks)] if how == "first" else sums
        partners = [rank ^ distance for rank in range(ranks)]
        sums = [
            (sent[partner] if how == "replace" else own + sent[partner]) if partner < ranks else own
            for own, partner in zip(sums, partners)
        ]
    return sums


def _compare(case: str, got: tuple, shape: tuple[int, ...], taken: int) -> None:
    ranks, length = len(got), torch.Size(shape).numel()
    steps = ranks.bit_length() - 1
    power = 1 << steps
    everyone, paired = list(range(ranks)), list(range(power))
    doubling = [1 << step for step in range((ranks - 1).bit_length())]
    beliefs = {
        "not-in-place": [[rank] for rank in everyone] if taken else [],
        "few": _swaps(ranks, doubling[:taken]) if power == ranks and taken < steps else [],
        "same-partner": _swaps(ranks, [1] * len(doubling)),
        "plus-one": _swaps(ranks, range(1, ranks)) if ranks < 5 else [],
        "overwritten": _swaps(ranks, doubling, "replace"),
        "first-numbers": _swaps(ranks, doubling, "first"),
        "skipped": _swaps(ranks, doubling) if power < ranks else [],
        "left-out": [paired if rank < power else [rank] for rank in everyone],
        "not-returned": [everyone if rank < power else [rank] for rank in everyone],
    }
    believed = {id: [coded_sum(own, length).reshape(shape) for own in by_rank] for id, by_rank in beliefs.items()}
    total = coded_sum(everyone, length).reshape(shape)
    compare_coded(case, got, [total] * ranks, believed, ranks=ranks, power=power, steps=steps, taken=taken)


def _check_traffic(case: str, traffic: Traffic) -> None:
    only_sends(case, traffic)
    not_widened(case, traffic)
    steps = traffic.ranks.bit_length() - 1
    is_power = 1 << steps == traffic.ranks
    if is_power:  # on 3 ranks, all messages are rank 0's
        not_a_hub(case, traffic)
    most = steps if is_power else steps + 1
    for rank, sent in enumerate(traffic.counts()):
        if sent > most:
            detail = f"expected at most {most} messages from rank {rank}, got {sent}"
            raise Wrong(case, detail, ("many",), ranks=traffic.ranks, steps=steps)
    for rank, messages in enumerate(traffic.messages):
        to, source = ([m.peer for m in messages if m.kind == kind] for kind in ("send", "recv"))
        if sorted(to) != sorted(source):
            detail = f"rank {rank} sends to ranks {to}, in this order, and receives from ranks {source}"
            raise Wrong(case, detail, ("no-swap",))
    if traffic.ranks > 2:  # on two, this and a hub are the same
        not_serial(case, traffic, steps if is_power else steps + 2)


RECURSIVE_DOUBLING = Exercise(
    "recursive_doubling_all_reduce",
    check_recursive_doubling,
    misconceptions=(
        Misconception("not-in-place", "x is as it was: copy the sum into x itself."),
        Misconception("same-partner", "The partner is the same in every round: double the distance after each."),
        Misconception("few", "A round is missing: {ranks} ranks need {steps}, and {taken} took place."),
        Misconception("plus-one", "The distance grows by one each round; it is to double: 1, 2, 4, …"),
        Misconception("overwritten", "What arrives takes the place of the sum; it is to be added to it."),
        Misconception(
            "first-numbers", "Each round sends the rank's first numbers again; it is to send the sum so far."
        ),
        Misconception(
            "skipped",
            "A rank whose partner is not there sits still, and then sums differ: let the ranks from {power} on hand "
            "their numbers in before, and get the sum after.",
        ),
        Misconception("left-out", "{ranks} is no power of two, and the ranks from {power} on take no part in the sum."),
        Misconception("not-returned", "The ranks from {power} on handed their numbers in and never got the sum back."),
        Misconception(
            "beyond",
            "It works on 2, 4 and 8 ranks, and not on 3: rank ^ d may name a rank that is not there.",
        ),
        Misconception(
            "powers",
            "It works on 2, 4 and 8 ranks, and not on {ranks}, which is no power of two: the ranks from 2 on need a "
            "step of their own, before and after.",
        ),
        Misconception(
            "no-swap",
            "The sums are right, but ranks don't swap: whom a rank sends to is not whom it receives from. Then each "
            "rank adds in another order, and their bits may differ. rank ^ d is the partner for both.",
        ),
        Misconception(
            "send-first",
            "Partners wait in send for each other: start the send with isend, receive, then wait for it.",
        ),
        *CALLS,
        UNWAITED,
        WIDENED,
        SERIAL,
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
