"""Says in words what a rank waits for, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from distlab.events import ANY_SOURCE, MakeGroup, Message
from distlab.ranks.output import name_ranks

SAME_SHAPE = {"all_reduce", "broadcast", "reduce"}
_SAME_SIZE = SAME_SHAPE | {"all_gather", "reduce_scatter"}
_REMEDIES = {
    "strides": ". The backend combines elements as they lie in memory: let every rank send x.contiguous(), and copy "
    "what comes back into x"
}
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


def operation_words(wanted: Message | MakeGroup, members: tuple[int, ...], world_size: int, group: str = "") -> str:
    """All that is to know of what a rank waits for: "all_reduce #2 of float32[4], sum".

    ``group`` names the group where its members don't tell which it is.
    """
    if isinstance(wanted, MakeGroup):
        return f"new_group of {name_ranks(list(members))}"
    more = [f"tag {wanted.tag}" if wanted.tag else "", wanted.reduce_op]
    more += [f"root rank {wanted.root}" if wanted.root is not None else ""]
    named = f" {group!r}" if group else ""
    more += [f"in the group{named} of {name_ranks(list(members))}" if named or len(members) < world_size else ""]
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
            remedy = _REMEDIES.get(differ, "")
            return f"{_title(differ, first)}: {_sides(groups, differ, joined)}{remedy}"
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
    return _compared_fields(mine) == _compared_fields(other)


_compared_fields = attrgetter("kind", "dtype", "elements", "root", "reduce_op", "strides")


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
        same.append(("shapes", lambda m: m.elements))
        same.append(("strides", lambda m: m.strides))
    return same


def _title(differ: str, message: Message) -> str:
    if differ == "collectives":
        return f"different collectives at #{message.sequence}"
    return f"different {differ} in {name(message)}"


def _sides(groups: Mapping[object, list[int]], differ: str, joined: Mapping[int, Message]) -> str:
    return ", ".join(_side(ranks, differ, joined[ranks[0]]) for ranks in groups.values())


def reshaped_words(joined: Mapping[int, Message]) -> str:
    """Ranks brought as many elements, in other shapes."""
    groups: dict[object, list[int]] = {}
    for rank, message in sorted(joined.items()):
        groups.setdefault(message.shape, []).append(rank)
    first = next(iter(joined.values()))
    return f"{name(first)} takes elements as they lie, but the shapes differ: {_sides(groups, 'shapes', joined)}"


def mixed_words(rank: int, group: str) -> str:
    """Two threads of a rank use one group at once."""
    return (
        f"rank {rank} has collectives of two threads under way in {group} at once: which of them meets which of "
        "another rank's is left to chance. Give each thread a group of its own"
    )


def meeting_words(joined: Mapping[int, Message], place_of: Callable[[int], str]) -> str:
    """The calls that met in one collective stand on several lines."""
    groups: dict[int, list[int]] = {}
    for rank, message in sorted(joined.items()):
        groups.setdefault(message.place, []).append(rank)
    sides = [f"{place_of(place)} on {name_ranks(ranks)}" for place, ranks in groups.items()]
    first = next(iter(joined.values()))
    return f"{name(first)} is called at {', at '.join(sides)}: right only if these calls belong together"


def _side(ranks: list[int], differ: str, message: Message) -> str:
    s = "s" if len(ranks) == 1 else ""
    words = {
        "collectives": f"call{s} {message.kind}",
        "roots": f"name{s} rank {message.root} as root",
        "reduce ops": f"ask{s} for {message.reduce_op}",
        "dtypes": f"bring{s} {tensor_words(message)}",
        "shapes": f"bring{s} {tensor_words(message)}",
        "strides": f"bring{s} {tensor_words(message)} {_lying(message)}",
    }
    return f"{name_ranks(ranks)} {words[differ]}"


def _lying(message: Message) -> str:
    return f"with strides {list(message.strides)}" if message.strides else "row by row"


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
