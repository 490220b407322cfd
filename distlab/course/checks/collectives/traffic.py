"""Who sent how much to whom, and in how many steps, by the recording; and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from distlab.course.checks.collectives.calls import Calls, explain, noted, numbered
from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import P2P, Done, Event, Message, Span, Wait
from distlab.machine.hardware import Link, Machine
from distlab.ranks.outcome import Run
from distlab.ranks.output import name_ranks
from distlab.recording import Group, Recording

_STEP = Link(1.0, math.inf)
_STEPS = Machine("a second a message", 1, 1, math.inf, 0, 1024, inside=_STEP, between=_STEP)


def in_place(learners: Callable, cases: Sequence[tuple]) -> list[torch.Tensor]:
    """On a rank: what it holds after each case; a case is the tensors by rank, and what else the function takes."""
    found = []
    for number, (rows, *more) in enumerate(cases):
        x = rows[dist.get_rank()].clone()
        with numbered(number):
            learners(x, *more)
        found.append(x)
    return found


@dataclass(frozen=True)
class Traffic:
    """The events of one case, by rank, and the length and the bytes an element of a rank's tensor."""

    events: Sequence[Sequence[Event]]
    groups: Sequence[Group]
    length: int
    item: int

    @property
    def ranks(self) -> int:
        """The world size."""
        return len(self.events)

    @property
    def bytes(self) -> int:
        """The size S of one rank's whole tensor."""
        return self.item * self.length

    @property
    def chunk(self) -> int:
        """The size of its longest chunk, in bytes."""
        return self.item * -(-self.length // self.ranks)

    @cached_property
    def messages(self) -> list[list[Message]]:
        """What each rank sent and received, and its collectives."""
        return [[event for event in history if isinstance(event, Message)] for history in self.events]

    @cached_property
    def steps(self) -> int:
        """How many messages the case takes one after the other, were all else free."""
        from distlab.machine.replay import replay  # here, since every rank of a check imports this module

        return round(replay(Recording(self.events, self.groups), _STEPS).wall)

    def sends(self, rank: int) -> list[Message]:
        """What a rank sent, but for empty messages."""
        return [m for m in self.messages[rank] if m.kind == "send" and m.bytes]

    def counts(self) -> list[int]:
        """How many messages each rank sent, but for empty ones."""
        return [len(self.sends(rank)) for rank in range(self.ranks)]

    def sent(self) -> list[int]:
        """Bytes sent, by rank."""
        return [sum(m.bytes for m in self.sends(rank)) for rank in range(self.ranks)]

    def sizes(self) -> set[int]:
        """The sizes of all messages, in bytes."""
        return {m.bytes for rank in range(self.ranks) for m in self.sends(rank)}

    def peers(self, rank: int) -> list[int]:
        """Whom a rank sends to."""
        return sorted({m.peer for m in self.sends(rank)})


def traffic_by_case(recording: Recording, tensors: Sequence[torch.Tensor]) -> list[Traffic]:
    """Splits a recording into its numbered cases; ``tensors`` are like a rank's in each of them."""
    cases = [[[] for _ in recording.ranks] for _ in tensors]
    for rank, history in enumerate(recording.ranks):
        case, issued = None, set()
        for event in history:
            if isinstance(event, Span):
                case = cases[int(event.name.removeprefix("case"))][rank] if event.name.startswith("case") else None
                issued = set()
            elif case is not None and isinstance(event, Message):
                case.append(event)
                issued.add(event.id)
            elif case is not None and isinstance(event, Wait | Done) and event.id in issued:
                case.append(event)
    return [Traffic(case, recording.groups, x.numel(), x.element_size()) for case, x in zip(cases, tensors)]


# --- what is wrong with it -----------------------------------------------------------------------

SERIAL = Misconception(
    "serial",
    "The steps wait for each other: they take the time of {steps} messages one after the other, where {fewest} do. "
    "On every rank, start the send with isend before you receive.",
)
WIDENED = Misconception(
    "widened", "x has {own} bytes an element, and the messages carry {sent}: send x's own numbers, in its own dtype."
)


def only_sends(case: str, traffic: Traffic) -> None:
    """Raises Wrong if anything but send and recv was called."""
    for rank, messages in enumerate(traffic.messages):
        for kind in sorted({m.kind for m in messages} - P2P):
            raise Wrong(case, f"expected send and recv only, rank {rank} called {kind}", ("collective",), kind=kind)


def not_widened(case: str, traffic: Traffic) -> None:
    """Raises Wrong if a message's elements are longer than the tensor's."""
    for rank in range(traffic.ranks):
        for m in traffic.sends(rank):
            if m.bytes > traffic.item * m.elements:
                detail = f"rank {rank} sends {m.dtype}{list(m.shape)} to rank {m.peer}"
                raise Wrong(case, detail, ("widened",), own=traffic.item, sent=m.bytes // m.elements)


def not_serial(case: str, traffic: Traffic, fewest: int) -> None:
    """Raises Wrong if messages that could travel at once go one after the other."""
    if traffic.steps > fewest:
        detail = f"expected {fewest} steps, got {traffic.steps}, by a replay in which each message takes one step"
        raise Wrong(case, detail, ("serial",), steps=traffic.steps, fewest=fewest)


def not_a_hub(case: str, traffic: Traffic) -> None:
    """Raises Wrong if rank 0 is at one end of every message."""
    others = [m.peer for messages in traffic.messages[1:] for m in messages if m.bytes]
    if traffic.ranks > 2 and others and not any(others):
        detail = f"expected messages between all neighbours, got none but rank 0's; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("hub",))


def check_ring(case: str, traffic: Traffic, passes: int) -> None:
    """Raises Wrong unless every rank sent ``passes`` × (n − 1) messages of one chunk to the same neighbour, all at
    once."""
    only_sends(case, traffic)
    not_widened(case, traffic)
    steps, counts = passes * (traffic.ranks - 1), traffic.counts()
    if traffic.ranks < 3:  # on two, a ring and a hub are the same but for the sizes
        return
    not_a_hub(case, traffic)
    _same_neighbour(case, traffic)
    if (longest := max(traffic.sizes(), default=0)) > traffic.chunk:
        detail = f"expected at most {traffic.chunk} bytes a message, got {longest}; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("whole",) if longest == traffic.bytes else (), ranks=traffic.ranks)
    if max(counts) > steps:
        detail = f"expected {steps} messages a rank, got {max(counts)}; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("many",))
    if sum(traffic.sent()) != steps * traffic.bytes:
        raise Wrong(case, f"expected {steps * traffic.bytes} bytes in all; bytes sent: {_by_rank(traffic)}")
    not_serial(case, traffic, steps)


def _same_neighbour(case: str, traffic: Traffic) -> None:
    for rank in range(traffic.ranks):
        peers = traffic.peers(rank)
        if peers not in ([], [(rank + 1) % traffic.ranks], [(rank - 1) % traffic.ranks]):
            right = (rank + 1) % traffic.ranks
            detail = f"expected rank {rank} to send to rank {right} only, it sent to {name_ranks(peers)}"
            raise Wrong(case, detail, ("no-ring",))


def _by_rank(traffic: Traffic) -> str:
    return ", ".join(f"rank {rank} {sent}" for rank, sent in enumerate(traffic.sent()))


# --- running it ----------------------------------------------------------------------------------


class Failed(RankFailed):
    """As RankFailed, with the ``calls`` that every rank had made."""

    def __init__(self, failed: RankFailed, calls: Calls):
        super().__init__(failed.case, failed.error)
        self.detail, self.calls = failed.detail, calls


def watch(trial: Trial, known: Sequence[Misconception], case: str, driver: Callable, *args, ranks: int) -> Run:
    """Does what :meth:`Trial.watch` does, and names a failure that one of the ``known`` misconceptions explains.

    Raises Failed for others. Raises Wrong if an isend or irecv was never waited for, or its tensor written to before
    that, without looking at values: they may be wrong only now and then.
    """
    ids = {misconception.id for misconception in known}
    with TemporaryDirectory(prefix="distlab-calls-", ignore_cleanup_errors=True) as folder:
        try:
            run = trial.watch(case, noted, folder, driver, *args, ranks=ranks)
        except RankFailed as failed:
            calls = Calls(folder, ranks)
            named = explain(failed, calls, ids)
            raise Failed(failed, calls) if named is failed else named from None
        calls = Calls(folder, ranks)
    _check_waits(case, run.recording)
    for rank, line in calls.written:
        detail = f"on rank {rank}, what this line sends was no longer the same when it was waited for:\n  {line}"
        raise Wrong(case, detail, ("written",) if "written" in ids else ())
    return run


def _check_waits(case: str, recording: Recording) -> None:
    for rank, history in enumerate(recording.ranks):
        waited = {event.id for event in history if isinstance(event, Wait)}
        for message in recording.messages(rank):
            if message.kind in P2P and message.id not in waited:
                detail = f"rank {rank} never waited for its i{message.kind}, rank {message.peer} at the other end"
                raise Wrong(case, detail, ("unwaited",), kind=f"i{message.kind}")
