"""Who sent how much to whom, and in how many steps; and what is wrong with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from distlab.course.kit.case import Job
from distlab.course.kit.experiment import Complaint
from distlab.course.kit.outcome import Outcome
from distlab.events import P2P, Done, Message, Wait
from distlab.machine.hardware import Link, Machine
from distlab.ranks.output import name_ranks
from distlab.recording import Recording

Look = Callable[[Job, Outcome], tuple[str, str, str] | None]  # a mistake's id, and the complaint that shows it

_STEP = Link(1.0, math.inf)
_STEPS = Machine("a second a message", 1, 1, math.inf, 0, 1024, inside=_STEP, between=_STEP)


class Judge:
    """A judge that looks at one thing after the other, and stops at the first complaint."""

    def __init__(self, *looks: Look):
        self._looks = only_sends, own_dtype, *looks

    def __call__(self, job: Job, outcome: Outcome) -> Iterator[Complaint]:
        """The complaint, if there is one."""
        yield from ((what, detail) for _, what, detail in self._first(job, outcome))

    def shown(self, job: Job, outcome: Outcome) -> tuple[str, ...]:
        """The id of the mistake that it shows."""
        return tuple(id for id, _, _ in self._first(job, outcome) if id)

    def _first(self, job: Job, outcome: Outcome) -> list[tuple[str, str, str]]:
        return list(itertools.islice(filter(None, (look(job, outcome) for look in self._looks)), 1))


def sends(outcome: Outcome, rank: int) -> list[Message]:
    """What a rank sent, but for empty messages."""
    return [m for m in outcome.messages(rank, "call") if m.kind == "send" and m.bytes]


def peers(outcome: Outcome) -> list[list[int]]:
    """Whom each rank sent to, once for each message."""
    return [sorted(m.peer for m in sends(outcome, rank)) for rank in range(len(outcome.values))]


def steps(outcome: Outcome) -> int:
    """How many messages the call takes one after the other, were all else free."""
    from distlab.machine.replay import replay  # here, since every rank of a check imports this module

    histories = []
    for history in outcome.events:
        issued = {event.id for event in history if type(event) is Message}
        histories.append([e for e in history if type(e) is Message or type(e) in (Wait, Done) and e.id in issued])
    return round(replay(Recording(histories, outcome.groups), _STEPS).wall)


def fields(job: Job, outcome: Outcome | None) -> dict:
    """What the sentences about traffic say of it."""
    own = {"own": job.dtype.itemsize, "dtype": str(job.dtype).removeprefix("torch.")}
    if outcome is None:
        return own
    called = [m for rank in range(job.ranks) for m in outcome.messages(rank, "call")]
    messages, kinds = [m for m in called if m.bytes], sorted({m.kind for m in called} - P2P)
    more = {"kind": kinds[0]} if kinds else {"took": steps(outcome)}
    return own | more | {"sent": max((m.bytes // m.elements for m in messages), default=0)}


# --- looks ---------------------------------------------------------------------------------------


def only_sends(job: Job, outcome: Outcome):
    """Nothing but send and recv is called."""
    for rank in range(job.ranks):
        for kind in sorted({m.kind for m in outcome.messages(rank, "call")} - P2P):
            return "collective", "", f"expected send and recv only, rank {rank} called {kind}"
    return None


def own_dtype(job: Job, outcome: Outcome):
    """No message's elements are longer than the tensor's."""
    for rank in range(job.ranks):
        for m in sends(outcome, rank):
            if m.bytes > job.dtype.itemsize * m.elements:
                return "widened", "the messages", f"rank {rank} sends {m.dtype}{list(m.shape)} to rank {m.peer}"
    return None


def no_hub(job: Job, outcome: Outcome):
    """Rank 0 is not at one end of every message; on two ranks it always is."""
    others = [m.peer for rank in range(1, job.ranks) for m in outcome.messages(rank, "call") if m.bytes]
    if job.ranks < 3 or not others or any(others):
        return None
    return "hub", "whom ranks send to", "expected messages between all neighbours, got none but rank 0's"


def at_once(fewest: Callable[[Job], int]) -> Look:
    """Messages that can travel at once do not go one after the other; on two ranks they must."""

    def look(job: Job, outcome: Outcome):
        if job.ranks < 3 or (took := steps(outcome)) <= fewest(job):
            return None
        return "serial", "the steps", f"expected {fewest(job)}, got {took}, by a replay in which each message takes one"

    return look


def at_most(most: Callable[[Job], int]) -> Look:
    """No rank sends more messages than that."""

    def look(job: Job, outcome: Outcome):
        busiest = max(map(len, peers(outcome)))
        if job.ranks < 3 or busiest <= most(job):
            return None
        return "many", "the messages of a rank", f"expected at most {most(job)}, got {busiest}"

    return look


def ring(passes: int) -> Judge:
    """Every rank sends ``passes`` × (n − 1) messages of one chunk, all at once, to one neighbour a pass.

    A single pass goes to the right; of two, each may turn either way.
    """

    def neighbours(job: Job, outcome: Outcome):
        for rank, sent_to in enumerate(map(set, peers(outcome))):
            right, left = (rank + 1) % job.ranks, (rank - 1) % job.ranks
            if len(sent_to) > passes or not sent_to <= {right, left}:
                detail = f"expected rank {rank} to send to rank {right} only, it sent to {name_ranks(sorted(sent_to))}"
                return "no-ring", "whom ranks send to", detail
            if passes == 1 and job.ranks > 2 and sent_to == {left}:
                return "leftwards", "whom ranks send to", f"expected rank {rank} to send to rank {right}, not to {left}"
        return None

    def count(job: Job) -> int:
        return passes * (job.ranks - 1)

    return Judge(no_hub, neighbours, _chunks, at_most(count), at_once(count))


def _chunks(job: Job, outcome: Outcome):
    whole = job.dtype.itemsize * math.prod(job["shape"])
    most = job.dtype.itemsize * -(-math.prod(job["shape"]) // job.ranks)
    sizes = [[m.bytes for m in sends(outcome, rank)] for rank in range(job.ranks)]
    longest = max(itertools.chain(*sizes), default=0)
    if job.ranks < 3 or longest <= most:  # on two ranks, a ring and a hub are the same but for the sizes
        return None
    sent = ", ".join(f"rank {rank} {sum(own)}" for rank, own in enumerate(sizes))
    id = "whole" if longest == whole else "rows" if job["shape"][1:] else ""
    return id, "", f"expected at most {most} bytes a message, got {longest}; bytes sent: {sent}"
