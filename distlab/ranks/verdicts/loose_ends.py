"""Loose ends: works that were begun and never waited for, and memory that was used before the wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from distlab.events import P2P, Message, Touch, Wait
from distlab.ranks.output import name_ranks
from distlab.recording import Recording

_NAMES = {"send": "isend", "recv": "irecv"}
_VERBS = {"send": "send", "recv": "receive into"}
_USED = {"read": "read it", "written": "wrote to it"}


def loose_ends(recording: Recording) -> list[str]:
    """A line for each of them: which ranks, what, at which line, and what to do; none if all was waited for in time."""
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank in range(recording.world_size):
        for words in dict.fromkeys((*_begun(recording, rank), *_touched(recording, rank))):
            ranks_of[words].append(rank)
    return [f"{name_ranks(ranks)} {words}" for words, ranks in ranks_of.items()]


def unwaited(recording: Recording, rank: int) -> list[Message]:
    """The messages of a rank that have a Work which was never waited for."""
    waited = {event.id for event in recording.events(Wait, rank)}
    return [message for message in _with_work(recording, rank) if message.id not in waited]


def _with_work(recording: Recording, rank: int) -> list[Message]:
    return [message for message in recording.messages(rank) if message.is_async or message.kind in P2P]


def _begun(recording: Recording, rank: int) -> Iterator[str]:
    left = Counter((message.kind, message.place) for message in unwaited(recording, rank))
    begun = Counter((message.kind, message.place) for message in _with_work(recording, rank)) if left else {}
    for (kind, place), number in left.items():
        at = _at(recording, place)
        name = _NAMES.get(kind, f"asynchronous {kind}")
        if begun[kind, place] == 1:
            yield f"began an {name}{at} and never waited for it: keep its Work, and call wait() on it"
        else:
            many = f"{begun[kind, place]} {name}s"
            yield f"began {many}{at} and never waited for {number} of them: keep each Work, and call wait() on it"


def _touched(recording: Recording, rank: int) -> Iterator[str]:
    touches = recording.events(Touch, rank)
    messages = {message.id: message for message in recording.messages(rank)} if touches else {}
    for touch in touches:
        message = messages[touch.id]
        begun = f"began to {_VERBS.get(message.kind, message.kind)} a tensor{_at(recording, message.place)}"
        yield f"{begun} and {_USED[touch.how]}{_at(recording, touch.place)} before the wait(): wait for the Work first"


def _at(recording: Recording, place: int) -> str:
    return f" at {recording.places[place]}" if place else ""
