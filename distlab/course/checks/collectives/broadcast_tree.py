"""The check of broadcast_tree: one rank's tensor reaches all in a logarithm of rounds."""

from __future__ import annotations

import torch.distributed as dist

from distlab.course.checks.collectives import traffic
from distlab.course.checks.collectives.bringing import FAILURES, TRAFFIC, brought, changed, in_place, spoilt
from distlab.course.checks.collectives.coding import meant, said
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

ROOTS = {2: (0, 1), 4: (0, 3, 2), 3: (0, 1, 2), 1: (0,), 5: (3,), 7: (6,), 10: (2,)}  # by number of ranks


def drive(lab, job: Job) -> dict:
    """On a rank: x after the broadcast; rank 0 is the root where none is named."""
    named = [job["root"]] if job["root"] else []
    rank = dist.get_rank()
    x = brought(job, rank)
    return changed(lab.broadcast_tree, x if rank == job["root"] else spoilt(job, x), *named)


def _once_each(job: Job, outcome: Outcome):
    received = sorted(sum(traffic.peers(outcome), []))
    if received == [rank for rank in range(job.ranks) if rank != job["root"]]:
        return None
    return "again", "the messages", f"expected one to every rank but {job['root']}, got messages to ranks {received}"


def _rounds(job: Job, outcome: Outcome):
    fewest, took = (job.ranks - 1).bit_length(), traffic.steps(outcome)
    if took <= fewest:
        return None
    sent = [(rank, sent_to) for rank, sent_to in enumerate(traffic.peers(outcome)) if sent_to]
    longest = max(len(sent_to) for _, sent_to in sent)
    shape = "flat" if longest == job.ranks - 1 else "chain" if longest == 1 else "idle"
    tree = "; ".join(f"{rank} sends to {', '.join(map(str, sent_to))}" for rank, sent_to in sent)
    return shape, "the rounds", f"expected {fewest}, got {took}: {tree}"


def fields(job: Job, outcome: Outcome | None) -> dict:
    """How many ranks a power of two reaches, and the fewest rounds."""
    more = {"reached": 1 << job.ranks.bit_length() - 1, "fewest": (job.ranks - 1).bit_length()}
    return traffic.fields(job, outcome) | more


_JUDGE = traffic.Judge(_once_each, _rounds)

BROADCAST_TREE = Exercise(
    "broadcast_tree",
    Experiment(
        [Case(ranks, f" and root {root}", root=root, shape=(2, 3)) for ranks, roots in ROOTS.items() for root in roots],
        drive,
        lambda job, _: in_place([{"x": brought(job, job["root"])}] * job.ranks),
        judge=_JUDGE,
        shown=_JUDGE.shown,
        fields=fields,
        words=said,
        tells=meant,
        holds="every rank holds the root's numbers after the fewest rounds possible, each rank receiving once; "
        "on 1 to 4 ranks from any root, and on three larger numbers up to 10 from one",
    ),
    misconceptions=misconceptions(
        root_ignored="Rank 0's numbers arrived; rank {root} is the root here.",
        not_in_place="Every rank still holds its own numbers: write what arrives into x itself.",
        power_of_two="Only {reached} of {ranks} ranks were reached: the number of ranks need not be a power of two, "
        "so one more round is needed.",
        beyond="It sends where nobody receives: the partner would be beyond the last rank. place + distance must stay "
        "below world.",
        powers="It works on 2 and on 4 ranks, and not on {ranks}: the number of ranks need not be a power of two.",
        root_only="Only rank {root} sends: a rank that has received is to send on, too.",
        flat="Rank {root} sends to all the others itself, in {took} rounds; let those who have it help, and it takes "
        "{fewest}.",
        chain="The tensor goes from neighbour to neighbour, in {took} rounds; if everybody who has it sends in every "
        "round, it takes {fewest}.",
        idle="It takes {took} rounds where {fewest} would do: some rank has the tensor and stops helping. In each "
        "round, all who have it are to send.",
        again="The numbers are right, but some rank gets them more than once.",
        send_first="Ranks send to each other before they receive: only who has the tensor may send.",
        **{id: says for id, says in FAILURES.items() if id != "room"},
        **TRAFFIC,
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
