"""Says in words why ranks can never go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from distlab.events import ANY_SOURCE, P2P, MakeGroup, Message
from distlab.ranks.output import name_ranks
from distlab.ranks.verdicts.words import name


def gone_words(gone: list[int], how: str, waiting: list[int], wanted: Message | MakeGroup) -> str:
    """A partner left and never joined."""
    who = f"{name_ranks(gone)} {how}"
    verb = "waits" if len(waiting) == 1 else "wait"
    if isinstance(wanted, MakeGroup):
        return f"{who} and never joined new_group, in which {name_ranks(waiting)} {verb}"
    if wanted.kind == "send":
        return f"{who} without receiving what {name_ranks(waiting)} {verb} to send to it"
    if wanted.kind == "recv":
        return f"{who} without sending what {name_ranks(waiting)} {verb} to receive"
    return f"{who} and never joined {name(wanted)}, in which {name_ranks(waiting)} {verb}"


BEGUN_AT = "(begun at "


def dropped_words(dropper: int, left: str, waiting: int, wanted: Message, place: str = "") -> str:
    """One side of a message was begun at ``place`` and never waited for; ``wanted`` is what the other waits for."""
    begun = f"its isend to rank {waiting}" if wanted.kind == "recv" else f"its irecv from rank {waiting}"
    at = f" {BEGUN_AT}{place})" if place else ""
    if left == "returned":
        return f"rank {dropper} returned before {begun} was waited for{at}"
    return f"rank {dropper} dropped the Work of {begun}, and the message with it{at}: keep the Work, and wait for it"


def channel_words(missed: Mapping[int, Sequence[Message]], left: Mapping[int, str]) -> str:
    """A send and a receive that miss each other by tag, by group or by peer, or ""; ``missed`` found no partner."""
    for sender, messages in missed.items():
        for send in messages:
            for receive in missed.get(send.partner, ()) if send.kind == "send" else ():
                if receive.kind == "recv" and (words := _miss_words(sender, send, receive, left)):
                    return words
    return _crossed_words(missed)


def _miss_words(sender: int, send: Message, receive: Message, left: Mapping[int, str]) -> str:
    base = f"rank {sender} sends to rank {send.peer}"
    if receive.peer == sender and receive.tag != send.tag:
        return f"{base} with tag {send.tag}, which receives from it with tag {receive.tag}: the tags differ"
    if receive.peer == sender and receive.group != send.group:
        return f"{base} in one group, which receives from it in another: the groups differ"
    if receive.partner in left:
        other = f"rank {receive.peer}, which {left[receive.partner]}"
        return f"{base}, but rank {send.peer} receives from {other}: the wrong peer"
    return ""


def _crossed_words(missed: Mapping[int, Sequence[Message]]) -> str:
    """Every rank has sent to one and waits for another, and nobody has sent to where it is waited for; or ""."""
    sends = {rank: [m for m in messages if m.kind == "send"] for rank, messages in missed.items()}
    waits = {rank: messages[0] for rank, messages in missed.items() if messages and messages[0].kind == "recv"}
    if len(waits) < 2 or waits.keys() != missed.keys() or not all(sends.values()):
        return ""
    rank = min(waits)
    send, receive = sends[rank][0], waits.get(sends[rank][0].partner)
    if receive is None or receive.partner in (rank, ANY_SOURCE) or receive.partner not in sends:
        return ""
    target = sends[receive.partner][0].peer
    if target == send.peer:
        return ""
    return (
        f"rank {rank} sends to rank {send.peer}, but rank {send.peer} receives from rank {receive.peer}, which sends "
        f"to rank {target}: the wrong peer, in the send or in the receive"
    )


def apart_words(
    waits: Mapping[int, Message | MakeGroup], members: Mapping[int, tuple[int, ...]], name_of: Callable[[int], str]
) -> str:
    """Ranks that wait for each other in two groups of the same members, or ""."""
    named = {rank: wanted for rank, wanted in waits.items() if isinstance(wanted, Message) and wanted.kind not in P2P}
    groups: dict[int, list[int]] = {}
    for rank, wanted in sorted(named.items()):
        groups.setdefault(wanted.group, []).append(rank)
    if len(groups) < 2 or len({members[group] for group in groups}) > 1:
        return ""
    sides = [
        f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {name(named[ranks[0]])} of group "
        f"{name_of(group)!r}"
        for group, ranks in groups.items()
    ]
    return f"{', '.join(sides)}: two groups of the same ranks, and an operation of one never meets one of the other"


def cycle_words(waits: Mapping[int, Message | MakeGroup], missing: Callable[[int], set[int]]) -> str:
    """Ranks that wait for each other in a circle."""
    if all(isinstance(wanted, Message) and wanted.peer == ANY_SOURCE for wanted in waits.values()):
        return f"{name_ranks(sorted(waits))} wait to receive from any rank, and nobody sends"
    cycle = _cycle(waits, missing)
    kinds = {wanted.kind if isinstance(wanted, Message) else "new_group" for wanted in (waits[rank] for rank in cycle)}
    act = "to send to" if kinds == {"send"} else "to receive from" if kinds == {"recv"} else "for"
    if len(cycle) == 2:
        return f"ranks {cycle[0]} and {cycle[1]} each wait {act} the other"
    if len(cycle) > 2:
        circle = " → ".join(map(str, [*cycle, cycle[0]]))
        return f"ranks {circle} wait in a circle, each {act} the next"
    return f"{name_ranks(sorted(waits))} wait for each other"


def _cycle(waits: Mapping[int, Message | MakeGroup], missing: Callable[[int], set[int]]) -> list[int]:
    """Follows who waits for whom until a rank comes again; the smallest rank of the circle first."""
    path = [min(waits)]
    while True:
        following = sorted(other for other in missing(path[-1]) if other in waits)
        if not following:
            return []
        if following[0] in path:
            circle = path[path.index(following[0]) :]
            turn = circle.index(min(circle))
            return circle[turn:] + circle[:turn]
        path.append(following[0])
