"""The check of recursive_doubling_all_reduce: few messages, all of them long."""

from __future__ import annotations

import torch.distributed as dist

from distlab.course.checks.collectives import traffic
from distlab.course.checks.collectives.bringing import (
    FAILURES,
    SERIAL,
    TRAFFIC,
    brought,
    cases,
    changed,
    in_place,
    total,
)
from distlab.course.checks.collectives.coding import meant, said
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.ranks.output import name_ranks


def _swaps(job: Job) -> int:
    """lg of the largest power of two up to the number of ranks."""
    return job.ranks.bit_length() - 1


def _extra(job: Job) -> int:
    """1 where ranks are left over beyond that power."""
    return int(1 << _swaps(job) < job.ranks)


def _no_hub(job: Job, outcome: Outcome):
    return None if _extra(job) else traffic.no_hub(job, outcome)  # on 3 ranks, all messages are rank 0's


def _partners(job: Job, outcome: Outcome):
    for rank in range(job.ranks):
        messages = outcome.messages(rank, "call")
        to, source = (sorted(m.peer for m in messages if m.kind == kind) for kind in ("send", "recv"))
        if to != source:
            detail = f"rank {rank} sends to {name_ranks(to)} and receives from {name_ranks(source)}"
            return "no-swap", "the partners", detail
    return None


def _most(job: Job) -> int:
    return _swaps(job) + _extra(job)


def _fewest(job: Job) -> int:
    return _swaps(job) + 2 * _extra(job)


def fields(job: Job, outcome: Outcome | None) -> dict:
    """The swaps that it takes, and those that took place on rank 0."""
    most = f"{_most(job)} message{'s' if _most(job) > 1 else ''}"
    more = {"steps": _swaps(job), "power": 1 << _swaps(job), "fewest": _fewest(job), "most": most}
    return traffic.fields(job, outcome) | more | ({"taken": len(traffic.sends(outcome, 0))} if outcome else {})


_JUDGE = traffic.Judge(_no_hub, traffic.at_most(_most), _partners, traffic.at_once(_fewest))

RECURSIVE_DOUBLING = Exercise(
    "recursive_doubling_all_reduce",
    Experiment(
        cases({2: [(3,), (2, 2)], 4: [(3,)], 8: [(2, 2)], 3: [(3,), (2, 2)], 6: [(3,)], 1: [(3,)]}),
        lambda lab, job: changed(lab.recursive_doubling_all_reduce, brought(job, dist.get_rank())),
        lambda job, _: in_place([{"x": total(job)}] * job.ranks),
        judge=_JUDGE,
        shown=_JUDGE.shown,
        fields=fields,
        words=said,
        tells=meant,
        holds="x holds the sum on every rank after lg n swaps of the whole tensor, for 1, 2, 4 and 8 ranks, and after "
        "two more steps for 3 and 6",
    ),
    misconceptions=misconceptions(
        not_in_place="x is as it was: copy the sum into x itself.",
        same_partner="The partner is the same in every round: double the distance after each.",
        few="A round is missing: {ranks} ranks need {steps}, and {taken} took place.",
        plus_one="The distance grows by one each round; it is to double: 1, 2, 4, …",
        overwritten="What arrives takes the place of the sum; it is to be added to it.",
        first_numbers="Each round sends the rank's first numbers again; it is to send the sum so far.",
        skipped="A rank whose partner is not there sits still, and then sums differ: let the ranks from {power} on "
        "hand their numbers in before, and get the sum after.",
        left_out="{ranks} is no power of two, and the ranks from {power} on take no part in the sum.",
        not_returned="The ranks from {power} on handed their numbers in and never got the sum back.",
        beyond="It works on 2, 4 and 8 ranks, and not on 3: rank ^ d may name a rank that is not there.",
        powers="It works on 2, 4 and 8 ranks, and not on {ranks}, which is no power of two: the ranks from {power} on "
        "need a step of their own, before and after.",
        no_swap="The sums are right, but ranks don't swap: whom a rank sends to is not whom it receives from. Then "
        "each rank adds in another order, and their bits may differ. rank ^ d is the partner for both.",
        send_first="Partners wait in send for each other: start the send with isend, receive, then wait for it.",
        many="The sums are right, but a rank sends more than {most}.",
        hub="Every message goes through rank 0; here every rank is to work in every round.",
        serial=SERIAL,
        **FAILURES,
        **TRAFFIC,
    ),
    hints=(
        "For a power of two: at distance d = 1, 2, 4, … swap the whole running sum with rank ^ d and add what came. "
        "Send a copy or wait for the isend before you add: the message must not change under way.",
        "Otherwise let p be the largest power of two up to n. Each rank r ≥ p first sends x to r − p, which adds it. "
        "Ranks below p do the rounds among themselves. At the end r − p sends the sum to r.",
    ),
    further=True,
)
