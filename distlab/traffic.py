"""Traffic: the bytes that go from rank to rank, and the bytes of each kind of message.

What a send carries was observed. How a built-in collective moves its bytes nobody saw: that is assumed, by the
algorithms of ``distlab.machine.costs``, and kept apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distlab.events import P2P, Message
from distlab.recording import Recording

Pair = tuple[int, int]


class BytesByPair(dict[Pair, float]):
    """Bytes by (source, target), 0 for all others."""

    def __missing__(self, pair: Pair) -> float:
        return 0

    def total(self) -> float:
        """All of them."""
        return sum(self.values())


@dataclass(frozen=True)
class Traffic:
    """Bytes by (source, target): ``observed`` in sends, ``assumed`` for the collectives of ``collectives``.

    ``collectives`` are kinds, in order; ASSUMPTIONS says how each is taken to move its bytes.
    """

    num_ranks: int
    observed: BytesByPair
    assumed: BytesByPair
    collectives: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """All bytes sent, observed and assumed."""
        return self.observed.total() + self.assumed.total()

    def sent(self) -> list[float]:
        """The bytes that each rank sends, by rank."""
        return self._sums(0)

    def received(self) -> list[float]:
        """The bytes that each rank receives, by rank."""
        return self._sums(1)

    def _sums(self, side: int) -> list[float]:
        sums = [0.0] * self.num_ranks
        for bytes_by_pair in (self.observed, self.assumed):
            for pair, bytes in bytes_by_pair.items():
                sums[pair[side]] += bytes
        return sums


class Sent(NamedTuple):
    """How many messages a rank issued, and the bytes that left it with them: none with a receive."""

    messages: int
    bytes: float


def count_traffic(recording: Recording) -> Traffic:
    """Adds up what each rank sends to each other. What a rank keeps for itself is not sent.

    Raises ValueError for a kind of collective that is not known.
    """
    observed, assumed = BytesByPair(), BytesByPair()
    kinds: set[str] = set()
    for rank, history in enumerate(recording.ranks):
        for message in history:
            if type(message) is not Message or message.kind == "recv":
                continue
            if message.kind == "send":
                observed[rank, message.partner] += message.bytes
                continue
            kinds.add(message.kind)
            for target, bytes in _sends(message, rank, recording.groups[message.group].members):
                assumed[rank, target] += bytes
    return Traffic(recording.world_size, observed, assumed, tuple(kind for kind in ASSUMPTIONS if kind in kinds))


def count_sent(recording: Recording) -> list[dict[str, Sent]]:
    """By rank, the sends and collectives that it issues, by kind in order of names, sends first.

    Raises ValueError for a kind of collective that is not known.
    """
    return [_sent(recording, rank) for rank in range(recording.world_size)]


def _sent(recording: Recording, rank: int) -> dict[str, Sent]:
    sizes: defaultdict[str, list[float]] = defaultdict(list)
    for message in recording.messages(rank):
        if message.kind == "send":
            sizes["send"].append(message.bytes)
        elif message.kind != "recv":
            members = recording.groups[message.group].members
            sizes[message.kind].append(sum(bytes for _, bytes in _sends(message, rank, members)))
    kinds = sorted(sizes, key=lambda kind: (kind not in P2P, kind))
    return {kind: Sent(len(sizes[kind]), sum(sizes[kind])) for kind in kinds}


def _sends(message: Message, rank: int, members: Sequence[int]) -> Iterator[tuple[int, float]]:
    """What a member of a collective sends, by the algorithm that is assumed: targets and bytes."""
    if message.kind not in _ALGORITHMS:
        raise ValueError(f"no traffic is known for {message.kind!r}; known are {', '.join(_ALGORITHMS)}, send, recv")
    if len(members) > 1:
        for place, bytes in _ALGORITHMS[message.kind](message, members.index(rank), members):
            if bytes:
                yield members[place], bytes


def _ring(rounds: int) -> Callable:
    """Each member sends its neighbour ``rounds`` times all parts but one."""

    def sends(message: Message, place: int, members: Sequence[int]) -> list[tuple[int, float]]:
        return [((place + 1) % len(members), rounds * (len(members) - 1) * message.bytes / len(members))]

    return sends


def _down_a_tree(is_divided: bool) -> Callable:
    """Each member of a binomial tree, the root on top, sends to those right below it: all, or only what is theirs."""

    def sends(message: Message, place: int, members: Sequence[int]) -> list[tuple[int, float]]:
        size, root = len(members), _root(message, members)
        children = _children((place - root) % size, size)
        return [((child + root) % size, _share(message, child, size, is_divided)) for child in children]

    return sends


def _up_a_tree(is_divided: bool) -> Callable:
    """Each member of a binomial tree, the root on top, sends to the one above it: all, or only its parts."""

    def sends(message: Message, place: int, members: Sequence[int]) -> list[tuple[int, float]]:
        size, root = len(members), _root(message, members)
        me = (place - root) % size
        return [(((me & (me - 1)) + root) % size, _share(message, me, size, is_divided))] if me else []

    return sends


def _root(message: Message, members: Sequence[int]) -> int:
    return 0 if message.root is None else members.index(message.root)


def _share(message: Message, child: int, size: int, is_divided: bool) -> float:
    """What the edge above a node carries."""
    return min(child & -child, size - child) * message.bytes / size if is_divided else message.bytes


def _children(node: int, size: int) -> list[int]:
    """The children of a node in a binomial tree: one more bit, lower than its lowest."""
    limit = node & -node or size
    return [node + 2**bit for bit in range(size.bit_length()) if 2**bit < limit and node + 2**bit < size]


def _directly(message: Message, place: int, members: Sequence[int]) -> list[tuple[int, float]]:
    """Each member sends every other its part."""
    size = message.bytes / message.elements if message.elements else 0
    parts = [part * size for part in message.parts] or [message.bytes / len(members)] * len(members)
    return [(other, bytes) for other, bytes in enumerate(parts) if other != place]


def _nothing(message: Message, place: int, members: Sequence[int]) -> list[tuple[int, float]]:
    return []


_ALGORITHMS: dict[str, Callable] = {
    "all_reduce": _ring(2),
    "reduce_scatter": _ring(1),
    "all_gather": _ring(1),
    "all_to_all": _directly,
    "broadcast": _down_a_tree(is_divided=False),
    "scatter": _down_a_tree(is_divided=True),
    "reduce": _up_a_tree(is_divided=False),
    "gather": _up_a_tree(is_divided=True),
    "barrier": _nothing,
    "monitored_barrier": _nothing,
}
ASSUMPTIONS: dict[str, str] = {
    "all_reduce": "around a ring, 2(n−1)/n of its size from each rank",
    "reduce_scatter": "around a ring, (n−1)/n of its size from each rank",
    "all_gather": "around a ring, (n−1)/n of its size from each rank",
    "all_to_all": "each part straight to its rank",
    "broadcast": "down a binomial tree, the whole on every edge",
    "scatter": "down a binomial tree, on every edge the parts of those below",
    "reduce": "up a binomial tree, the whole on every edge",
    "gather": "up a binomial tree, on every edge the parts of those below",
    "barrier": "nothing to count",
    "monitored_barrier": "nothing to count",
}
