"""Who sent how much to whom, by the recording, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import P2P, Message, Span, Wait
from distlab.ranks.outcome import Run
from distlab.ranks.output import name_ranks
from distlab.ranks.spans import span
from distlab.recording import Recording

_kept: list[dist.Work] = []  # on a rank: until it ends


@contextmanager
def keeping_sends() -> Iterator[None]:
    """On a rank: keeps every isend's Work.

    Gloo loses a message whose Work is dropped before it was waited for, and others then hang. Kept, it arrives, and the
    recording says that nobody waited.
    """
    real = dist.isend

    def isend(*args, **kwargs):
        _kept.append(real(*args, **kwargs))
        return _kept[-1]

    dist.isend = distributed_c10d.isend = isend  # batch_isend_irecv compares with the latter
    try:
        yield
    finally:
        dist.isend = distributed_c10d.isend = real


@contextmanager
def numbered(case: int) -> Iterator[None]:
    """On a rank: marks what follows as case ``case``, and keeps its sends."""
    with keeping_sends(), span("case", case):
        yield


class Traffic(NamedTuple):
    """The messages of one case, by rank, and the length of a rank's tensor."""

    messages: list[list[Message]]
    length: int

    @property
    def ranks(self) -> int:
        """The world size."""
        return len(self.messages)

    @property
    def bytes(self) -> int:
        """The size S of one rank's whole tensor."""
        return 8 * self.length

    @property
    def chunk(self) -> int:
        """The size of its longest chunk, in bytes."""
        return 8 * -(-self.length // self.ranks)

    def sends(self, rank: int) -> list[Message]:
        """What a rank sent, but for empty messages."""
        return [m for m in self.messages[rank] if m.kind == "send" and m.bytes]

    def sent(self) -> list[int]:
        """Bytes sent, by rank."""
        return [sum(m.bytes for m in self.sends(rank)) for rank in range(self.ranks)]

    def sizes(self) -> set[int]:
        """The sizes of all messages, in bytes."""
        return {m.bytes for rank in range(self.ranks) for m in self.sends(rank)}

    def peers(self, rank: int) -> list[int]:
        """Whom a rank sends to."""
        return sorted({m.peer for m in self.sends(rank)})


def traffic_by_case(recording: Recording, lengths: Sequence[int]) -> list[Traffic]:
    """Splits a recording into its numbered cases; ``lengths`` are those of each case's tensor, of float64."""
    ranks = recording.ranks
    cases = [Traffic([[] for _ in ranks], length) for length in lengths]
    for rank, history in enumerate(ranks):
        case = None
        for event in history:
            if isinstance(event, Span):
                case = cases[int(event.name.removeprefix("case"))] if event.name.startswith("case") else None
            elif case and isinstance(event, Message):
                case.messages[rank].append(event)
    return cases


def only_sends(case: str, traffic: Traffic) -> None:
    """Raises Wrong if anything but send and recv was called."""
    for rank, messages in enumerate(traffic.messages):
        for kind in sorted({m.kind for m in messages} - P2P):
            raise Wrong(case, f"expected send and recv only, rank {rank} called {kind}", ("collective",), kind=kind)


def not_a_hub(case: str, traffic: Traffic) -> None:
    """Raises Wrong if rank 0 is at one end of every message."""
    others = [m.peer for messages in traffic.messages[1:] for m in messages if m.bytes]
    if traffic.ranks > 2 and others and not any(others):
        detail = f"expected messages between all neighbours, got none but rank 0's; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("hub",))


def check_ring(case: str, traffic: Traffic, passes: int) -> None:
    """Raises Wrong unless every rank sent ``passes`` × (n − 1) messages of one chunk to the same neighbour."""
    only_sends(case, traffic)
    if traffic.ranks < 3:  # on two, a ring and a hub are the same but for the sizes
        return
    not_a_hub(case, traffic)
    _same_neighbour(case, traffic)
    steps, counts = passes * (traffic.ranks - 1), [len(traffic.sends(rank)) for rank in range(traffic.ranks)]
    if (longest := max(traffic.sizes(), default=0)) > traffic.chunk:
        detail = f"expected at most {traffic.chunk} bytes a message, got {longest}; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("whole",) if longest == traffic.bytes else (), ranks=traffic.ranks)
    if max(counts) > steps:
        detail = f"expected {steps} messages a rank, got {max(counts)}; bytes sent: {_by_rank(traffic)}"
        raise Wrong(case, detail, ("many",))
    if sum(traffic.sent()) != steps * traffic.bytes:
        raise Wrong(case, f"expected {steps * traffic.bytes} bytes in all; bytes sent: {_by_rank(traffic)}")


def _same_neighbour(case: str, traffic: Traffic) -> None:
    for rank in range(traffic.ranks):
        peers = traffic.peers(rank)
        if peers not in ([], [(rank + 1) % traffic.ranks], [(rank - 1) % traffic.ranks]):
            right = (rank + 1) % traffic.ranks
            detail = f"expected rank {rank} to send to rank {right} only, it sent to {name_ranks(peers)}"
            raise Wrong(case, detail, ("no-ring",))


def _by_rank(traffic: Traffic) -> str:
    return ", ".join(f"rank {rank} {sent}" for rank, sent in enumerate(traffic.sent()))


# --- hangs and crashes that a known mistake explains ---------------------------------------------

_VERDICTS = {
    "send-first": ("each to send to the next", "each wait to send to the other"),
    "receive-first": ("each to receive from the next", "each wait to receive from the other"),
    "unwaited": ("before its isend",),
}


def watch(trial: Trial, known: Sequence[Misconception], case: str, driver: Callable, *args, ranks: int) -> Run:
    """Does what :meth:`Trial.watch` does, and names a hang that one of the ``known`` misconceptions explains.

    Raises Wrong if an isend or irecv was never waited for, before values are looked at: they may be wrong only now and
    then.
    """
    try:
        run = trial.watch(case, driver, *args, ranks=ranks)
    except RankFailed as failed:
        ids = {misconception.id for misconception in known}
        verdict = failed.error.verdict
        named = [id for id, words in _VERDICTS.items() if id in ids and any(word in verdict for word in words)]
        raise failed.because(*named) if named else failed from None
    _check_waits(case, run.recording)
    return run


def _check_waits(case: str, recording: Recording) -> None:
    for rank, history in enumerate(recording.ranks):
        waited = {event.id for event in history if isinstance(event, Wait)}
        for message in recording.messages(rank):
            if message.kind in P2P and message.id not in waited:
                detail = f"rank {rank} never waited for its i{message.kind}, rank {message.peer} at the other end"
                raise Wrong(case, detail, ("unwaited",))
