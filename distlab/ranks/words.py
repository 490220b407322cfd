"""Says in words what a rank waits for, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from distlab.events import ANY_SOURCE, MakeGroup, Message
from distlab.ranks.output import name_ranks

_SAME_SHAPE = {"all_reduce", "broadcast", "reduce"}
_SAME_SIZE = _SAME_SHAPE | {"all_gather", "reduce_scatter"}
_WITHOUT_TENSORS = {"barrier", "monitored_barrier"}


def tensor_words(message: Message) -> str:
    """What a message holds: "float32[4, 2]"."""
    return f"{message.dtype}{list(message.shape)}" if message.dtype else "no tensor"


def name(message: Message) -> str:
    """The operation and its number: "all_reduce #2", "send to rank 1"."""
    if message.kind == "send":
        return f"send to rank {message.peer}"
    if message.kind == "recv":
        return "recv from any rank" if message.peer == ANY_SOURCE else f"recv from rank {message.peer}"
    return f"{message.kind} #{message.sequence}"


def operation_words(wanted: Message | MakeGroup, members: tuple[int, ...], world_size: int) -> str:
    """All that is to know of what a rank waits for: "all_reduce #2 of float32[4], sum"."""
    if isinstance(wanted, MakeGroup):
        return f"new_group of {name_ranks(list(members))}"
    more = [f"tag {wanted.tag}" if wanted.tag else "", wanted.reduce_op]
    more += [f"root rank {wanted.root}" if wanted.root is not None else ""]
    more += [f"in the group of {name_ranks(list(members))}" if len(members) < world_size else ""]
    of = f" of {tensor_words(wanted)}" if wanted.dtype else ""
    return ", ".join([f"{name(wanted)}{of}", *filter(None, more)])


def collective_words(joined: Mapping[int, Message], members: tuple[int, ...]) -> str:
    """What does not fit in the collectives that met at one number of the group of ``members``, or ""."""
    first = next(iter(joined.values()))
    for differ, value in _compared(first.kind):
        groups: dict[object, list[int]] = {}
        for rank, message in sorted(joined.items()):
            groups.setdefault(value(message), []).append(rank)
        if len(groups) > 1:
            return f"{_title(differ, first)}: {_sides(groups, differ, joined)}"
    return _part_words(joined, members) if first.parts or first.expects else ""


def _part_words(joined: Mapping[int, Message], members: tuple[int, ...]) -> str:
    """A part that is not as long as the room made for it, or ""."""
    for sender, sent in sorted(joined.items()):
        for receiver, taken in sorted(joined.items()):
            if not sent.parts or not taken.expects:
                continue
            part, room = sent.parts[members.index(receiver)], taken.expects[members.index(sender)]
            if part != room:
                return (
                    f"different sizes in {name(sent)}: rank {sender} sends {_elements(part)} to rank {receiver}, which "
                    f"expects {_elements(room)} from rank {sender}"
                )
    return ""


def _elements(number: int) -> str:
    return f"{number} element{'s' if number != 1 else ''}"


def is_like(mine: Message, other: Message) -> bool:
    """Whether two are alike in all that could be compared: true for nearly all, and quick to tell."""
    if mine.parts or mine.expects:
        return False
    return mine[1:2] + mine[4:8] + mine[9:12] == other[1:2] + other[4:8] + other[9:12]


def _compared(kind: str) -> list[tuple[str, Callable[[Message], object]]]:
    """What must be the same on all ranks, in order of importance."""
    same: list[tuple[str, Callable[[Message], object]]] = [
        ("collectives", lambda m: m.kind),
        ("roots", lambda m: m.root),
        ("reduce ops", lambda m: m.reduce_op),
    ]
    if kind not in _WITHOUT_TENSORS:
        same.append(("dtypes", lambda m: m.dtype))
    if kind in _SAME_SIZE:
        same.append(("shapes", (lambda m: m.shape) if kind in _SAME_SHAPE else lambda m: m.elements))
    return same


def _title(differ: str, message: Message) -> str:
    if differ == "collectives":
        return f"different collectives at #{message.sequence}"
    return f"different {differ} in {name(message)}"


def _sides(groups: Mapping[object, list[int]], differ: str, joined: Mapping[int, Message]) -> str:
    return ", ".join(_side(ranks, differ, joined[ranks[0]]) for ranks in groups.values())


def _side(ranks: list[int], differ: str, message: Message) -> str:
    s = "s" if len(ranks) == 1 else ""
    words = {
        "collectives": f"call{s} {message.kind}",
        "roots": f"name{s} rank {message.root} as root",
        "reduce ops": f"ask{s} for {message.reduce_op}",
        "dtypes": f"bring{s} {tensor_words(message)}",
        "shapes": f"bring{s} {tensor_words(message)}",
    }
    return f"{name_ranks(ranks)} {words[differ]}"


def pair_words(pair: Mapping[int, Message]) -> str:
    """What does not fit in a send and its receive."""
    sender, receiver = sorted(pair, key=lambda rank: pair[rank].kind, reverse=True)
    send, receive = pair[sender], pair[receiver]
    both = f"rank {sender} sends {tensor_words(send)} to rank {receiver}, which receives {tensor_words(receive)}"
    if send.dtype != receive.dtype:
        return f"{both}: the dtypes differ"
    length = "shorter" if receive.elements < send.elements else "longer"
    return f"{both}: the receive is {length} than the send"


def group_words(group: str, makers: Mapping[tuple[int, ...], list[int]]) -> str:
    """Groups made in different order: one name, different members."""
    sides = [f"{name_ranks(sorted(ranks))} made {name_ranks(list(members))}" for members, ranks in makers.items()]
    return (
        f"groups made in different order: as group {group}, {'; '.join(sides)}. Every rank must make all in one order"
    )


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


def dropped_words(dropper: int, left: str, waiting: int, wanted: Message) -> str:
    """One side of a message was begun and never waited for; ``wanted`` is what the other side waits for."""
    begun = f"its isend to rank {waiting}" if wanted.kind == "recv" else f"its irecv from rank {waiting}"
    if left == "returned":
        return f"rank {dropper} returned before {begun} was waited for"
    return f"rank {dropper} dropped the Work of {begun}, and the message with it: keep the Work, and wait for it"


def channel_words(missed: Mapping[int, Sequence[Message]], left: Mapping[int, str]) -> str:
    """A send and a receive that miss each other by tag, by group or by peer, or ""; ``missed`` found no partner."""
    for sender, messages in missed.items():
        for send in messages:
            for receive in missed.get(send.peer, ()) if send.kind == "send" else ():
                if receive.kind == "recv" and (words := _miss_words(sender, send, receive, left)):
                    return words
    return ""


def _miss_words(sender: int, send: Message, receive: Message, left: Mapping[int, str]) -> str:
    base = f"rank {sender} sends to rank {send.peer}"
    if receive.peer == sender and receive.tag != send.tag:
        return f"{base} with tag {send.tag}, which receives from it with tag {receive.tag}: the tags differ"
    if receive.peer == sender and receive.group != send.group:
        return f"{base} in one group, which receives from it in another: the groups differ"
    if receive.peer in left:
        other = f"rank {receive.peer}, which {left[receive.peer]}"
        return f"{base}, but rank {send.peer} receives from {other}: the wrong peer"
    return ""


def cycle_words(waits: Mapping[int, Message | MakeGroup], missing: Callable[[int], set[int]]) -> str:
    """Ranks that wait for each other in a circle."""
    if all(isinstance(wanted, Message) and wanted.peer == ANY_SOURCE for wanted in waits.values()):
        return f"{name_ranks(sorted(waits))} wait to receive from any rank, and nobody sends"
    cycle = _cycle(waits, missing)
    kinds = {wanted.kind if isinstance(wanted, Message) else "new_group" for wanted in (waits[rank] for rank in cycle)}
    act = {("send",): "to send to", ("recv",): "to receive from"}.get(tuple(kinds), "for")
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
