"""What a job may send: bytes by rank, whichever collectives carry them."""

from __future__ import annotations

from collections.abc import Iterator

from distlab.course.kit.outcome import Outcome
from distlab.course.kit.remarks import BARRIERS

# A ring all-reduce sends its array twice, once to add up and once to hand out: as much as the two halves do.
_TIMES = {"all_reduce": 2}


def bytes_sent(outcome: Outcome, rank: int, within: str = "call") -> int:
    """Bytes of the arrays that a rank's collectives send, an all-reduce's twice; single numbers are left out.

    A rank sends (W − 1)/W of them, which is the same for all kinds.
    """
    sent = (m for m in outcome.messages(rank, within) if m.elements > 1 and m.kind != "recv")
    return sum(_TIMES.get(m.kind, 1) * m.bytes for m in sent)


def more_than(most: int, outcome: Outcome, what: str, within: str = "call") -> list[tuple[str, str]]:
    """The complaint that some rank sent more bytes than ``most``; [] if none did."""
    sent = [bytes_sent(outcome, rank, within) for rank in range(len(outcome.values))]
    worst = max(range(len(sent)), key=sent.__getitem__)
    return [(what, f"rank {worst}: expected at most {most}, got {sent[worst]}")] if sent[worst] > most else []


def barriers(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The complaint that the learner's code calls a barrier: no exercise needs one."""
    for rank in range(len(outcome.values)):
        if number := sum(m.kind == "barrier" for m in outcome.messages(rank, "call")):
            yield BARRIERS, f"rank {rank}: expected none, got {number}"
            return
