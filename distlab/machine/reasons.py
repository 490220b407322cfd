"""Why a recording cannot be replayed to its end, and what in it was never waited for, in words."""

from __future__ import annotations

from collections.abc import Sequence

from distlab.events import ANY_SOURCE, P2P, Message
from distlab.machine.operation import Entry, Operation
from distlab.recording import Recording

_MOST_LINES = 12


class ReplayError(ValueError):
    """A recording cannot be replayed to its end; the message says who waits for whom."""


def mismatch(recording: Recording, number: int, first: Entry, second: Entry) -> str:
    """Two ranks' collectives of the same number in their group are of different kinds."""
    group = recording.groups[second[1].group].name
    parts = [f"rank {rank} issues {message.kind}{_at(recording, message)}" for rank, message, *_ in (first, second)]
    return f"collective #{number} of group {group} is not the same everywhere: {', '.join(parts)}."


def stuck(recording: Recording, blocked: Sequence[Operation | None], to_come: Sequence[set[Operation]]) -> str:
    """Every rank that waits for ever, and for whom; ``to_come`` has by rank what it would have issued later."""
    waiting = [(rank, operation) for rank, operation in enumerate(blocked) if operation is not None]
    lines = [f"rank {rank} waits {_for_whom(recording, rank, operation, to_come)}" for rank, operation in waiting]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"… and {len(lines) - _MOST_LINES} ranks more"]
    return "\n".join(["This recording cannot finish:", *lines, *recording.notes])


def never_waited(recording: Recording, left: Sequence[dict[int, tuple[Operation | None, Message]]]) -> list[str]:
    """One note for each rank that ``left`` operations unwaited for."""
    return [_left_over(recording, rank, list(of_rank.values())) for rank, of_rank in enumerate(left) if of_rank]


def _left_over(recording: Recording, rank: int, left: list[tuple[Operation | None, Message]]) -> str:
    message = left[0][1]
    first = f"{_name(message)}{_at(recording, message)}"
    what = first if len(left) == 1 else f"{len(left)} operations, the first of them {first}"
    unmatched = sum(operation is None or operation.end < 0 for operation, _ in left)
    never = f" ({'it' if len(left) == 1 else unmatched} never found the other side)" if unmatched else ""
    return f"rank {rank} never waits for {what}{never}: its clock does not move for that."


def _for_whom(recording: Recording, rank: int, operation: Operation, to_come: Sequence[set[Operation]]) -> str:
    message = operation.message(rank)
    what = f"in {_name(message)}{_at(recording, message)}"
    later = [other for other in operation.ranks if other != ANY_SOURCE and operation in to_come[other]]
    if message.kind in P2P:
        other = "issues the receive" if message.kind == "send" else "sends it"
        return f"{what}: {_peer(message)} {'waits before it' if later else 'never'} {other}."
    there = {entry[0] for entry in operation.entries}
    never = [other for other in sorted(operation.ranks) if other not in there]
    parts = [f"{_ranks(never)} never join{'s'[: len(never) == 1]}"] if never else []
    parts += [f"{_ranks(later)} wait{'s'[: len(later) == 1]} before joining"] if later else []
    return f"{what} of group {recording.groups[message.group].name}: {', '.join(parts)}."


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_LINES])) + (", …" if len(ranks) > _MOST_LINES else "")
    return f"rank{'s'[: len(ranks) > 1]} {shown}"


def _name(message: Message) -> str:
    if message.kind not in P2P:
        return message.kind
    way = "to" if message.kind == "send" else "from"
    return f"{message.kind} {way} {_peer(message)}, tag {message.tag}, {message.bytes:,} bytes"


def _peer(message: Message) -> str:
    return "any rank" if message.partner == ANY_SOURCE else f"rank {message.peer}"


def _at(recording: Recording, message: Message) -> str:
    place = recording.places[message.place] if message.place < len(recording.places) else ""
    return f" ({place})" if place else ""
