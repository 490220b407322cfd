"""Lab 01: the collectives, built from send and receive, and what they cost."""

from __future__ import annotations

from distlab.course.checks.collectives.broadcast_tree import BROADCAST_TREE
from distlab.course.checks.collectives.pass_token import PASS_TOKEN
from distlab.course.checks.collectives.recursive_doubling import RECURSIVE_DOUBLING
from distlab.course.checks.collectives.rings import RING_ALL_GATHER, RING_ALL_REDUCE, RING_REDUCE_SCATTER
from distlab.course.exercise import Prediction

LAB = "01_collectives"

EXERCISES = (PASS_TOKEN, BROADCAST_TREE, RING_REDUCE_SCATTER, RING_ALL_GATHER, RING_ALL_REDUCE, RECURSIVE_DOUBLING)


def ring_messages(ranks: int) -> int:
    """How many messages each rank sends in a ring all-reduce."""
    return 2 * (ranks - 1)


def ring_bytes(ranks: int) -> float:
    """How many bytes each rank sends in a ring all-reduce, for each byte of the tensor."""
    return ring_messages(ranks) / ranks


PREDICTIONS = {
    "01.finish": Prediction(
        "no",
        "A send is over when its receive has taken the message: both wait in send, and neither gets to recv.",
    ),
    "01.rounds": Prediction(
        [(ranks - 1).bit_length() for ranks in (4, 5, 8, 1024)],
        "Each round doubles the ranks that have it: the rounds are the logarithm to base 2, rounded up.",
    ),
    "01.total": Prediction(
        [2 * (4 - 1), 4 * ring_messages(4) // 4],
        "Hub: 3 tensors in and 3 out. Ring: each of 4 ranks sends 6 messages of a quarter. The total is the same.",
    ),
    "01.busiest": Prediction(
        [4 - 1, ring_bytes(4)],
        "The hub's rank 0 sends all 3 copies. On the ring the same total is spread evenly: 6 quarters a rank.",
    ),
    "01.bytes": Prediction(
        [ring_bytes(8), ring_bytes(16)],
        "2(n−1)/n tensors: 7% more, and never more than 2, however many ranks join.",
    ),
}
