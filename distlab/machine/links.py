"""Links: what an operation costs, and the send and receive clocks of every rank that it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from distlab.machine import collectives
from distlab.machine.hardware import Machine
from distlab.machine.operation import Operation

INSIDE, BETWEEN = (0,), (1,)


class Links:
    """By class of link (0 inside a node, 1 between nodes) and rank, the operation that last took each clock."""

    def __init__(self, num_ranks: int, machine: Machine):
        idle = Operation("", [], (), 0)
        idle.end = 0.0
        self._machine = machine
        self._nodes = [machine.node(rank) for rank in range(num_ranks)]
        self._sending = [[idle] * num_ranks for _ in (INSIDE, BETWEEN)]
        self._receiving = [[idle] * num_ranks for _ in (INSIDE, BETWEEN)]
        self._prices: dict[tuple[str, int, float], tuple[tuple[int, ...], float]] = {}
        self._chosen: defaultdict[str, set[str]] = defaultdict(set)

    def price_pair(self, pair: Operation) -> None:
        """Sets the class of link, the seconds and the turn of a send with its receive, by the bytes that are sent."""
        source, target = pair.ranks
        machine = self._machine
        if self._nodes[source] == self._nodes[target]:
            pair.classes, link = INSIDE, machine.inside
        else:
            pair.classes, link = BETWEEN, machine.between
        (_, message, _, sends), (_, _, _, receives) = pair.entries
        pair.bytes = message.bytes
        pair.seconds = link.latency_s + message.bytes / link.bytes_per_s
        pair.turn = sends, receives

    def price_collective(self, collective: Operation) -> None:
        """Sets the classes of link, the seconds and the turn: by its members' largest size, or their parts if uneven.

        Raises ValueError for a kind whose cost is not known.
        """
        first = collective.entries[0][1]
        key = collective.kind, first.group, collective.bytes
        if key not in self._prices:
            given = collective.kind, collective.bytes, collective.ranks, self._machine
            self._prices[key] = self._classes(*given), collectives.seconds(*given)
            self._chosen[collective.kind].add(collectives.algorithm_of(*given))
        collective.classes, collective.seconds = self._prices[key]
        if first.parts and (parts := _parts(collective)):
            collective.seconds = collectives.all_to_all(parts, collective.ranks, self._machine)
        places = sorted(place for _, _, _, place in collective.entries)
        collective.turn = places[0], places[-1], collective.kind, collective.seconds, places

    def chosen(self) -> tuple[str, ...]:
        """Where the machine takes the cheapest algorithm for each collective, which it took, as a note."""
        if self._machine.collectives != "auto" or not self._chosen:
            return ()
        words = (f"{kind} by {' and '.join(sorted(names))}" for kind, names in sorted(self._chosen.items()))
        return (f"the cheapest collectives: {', '.join(words)}".replace("_", " "),)

    def _classes(self, kind: str, bytes: float, members: Sequence[int], machine: Machine) -> tuple[int, ...]:
        if collectives.uses_both_links(kind, bytes, members, machine):
            return INSIDE + BETWEEN
        return BETWEEN if len({self._nodes[rank] for rank in members}) > 1 else INSIDE

    def take_pair(self, pair: Operation) -> None:
        """Gives a send and its receive, matched at their ``start``, their start on the link and their end."""
        source, target = pair.ranks
        which = pair.classes[0]
        sending, receiving = self._sending[which], self._receiving[which]
        before, other, start = sending[source], receiving[target], pair.start
        if other.end > before.end:
            before = other
        if before.end > start:
            pair.start = start = before.end
            pair.after = before
        pair.end = start + pair.seconds
        sending[source] = receiving[target] = pair

    def take_collective(self, collective: Operation) -> None:
        """Gives a collective, matched at its ``start``, its start on the links and its end."""
        clocks = [clock for which in collective.classes for clock in (self._sending[which], self._receiving[which])]
        for clock in clocks:
            for rank in collective.ranks:
                before = clock[rank]
                if before.end > collective.start:
                    collective.start, collective.after = before.end, before
        collective.end = collective.start + collective.seconds
        for clock in clocks:
            for rank in collective.ranks:
                clock[rank] = collective


def _parts(collective: Operation) -> list[list[float]]:
    """Bytes from each member of an all-to-all to each, by places in the group; empty if some member did not say."""
    sent = {rank: message for rank, message, _, _ in collective.entries}
    num_members = len(collective.ranks)
    if any(message.kind != "all_to_all" or len(message.parts) != num_members for message in sent.values()):
        return []
    sizes = {rank: message.bytes / message.elements if message.elements else 0 for rank, message in sent.items()}
    return [[part * sizes[rank] for part in sent[rank].parts] for rank in collective.ranks]
