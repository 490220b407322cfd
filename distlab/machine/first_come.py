"""FirstCome: receives of any source, which take what is sent first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from distlab.events import ANY_SOURCE, Done, Event, Message
from distlab.machine.links import Links
from distlab.machine.operation import Entry, Operation


class FirstCome:
    """Puts sends and receives together while the simulation runs, where a receive takes what is sent first.

    That is so for receives of any source whose source was not recorded, and for all else with the same destination,
    group and tag: ``keys``.
    """

    def __init__(self, histories: Sequence[Sequence[Event]], links: Links):
        self._links = links
        self._sources = {
            (rank, event.id): event.source
            for rank, history in enumerate(histories)
            for event in history
            if type(event) is Done and event.source is not None
        }
        self.keys = {
            (rank, event.group, event.tag)
            for rank, history in enumerate(histories)
            for event in history
            if type(event) is Message and event.kind == "recv" and self.source(rank, event) == ANY_SOURCE
        }
        self._sends: defaultdict[tuple, list[Operation]] = defaultdict(list)
        self._receives: defaultdict[tuple, list[Operation]] = defaultdict(list)

    def source(self, rank: int, receive: Message) -> int:
        """Who sends to a receive, ANY_SOURCE if that was neither said nor recorded."""
        if receive.partner == ANY_SOURCE:
            return self._sources.get((rank, receive.id), ANY_SOURCE)
        return receive.partner

    def meet(self, entry: Entry) -> Operation:
        """The operation that a message, issued now, is part of."""
        return self._send(entry) if entry[1].kind == "send" else self._receive(entry)

    def _send(self, entry: Entry) -> Operation:
        """Finds a send the first of the receives that can take it, or leaves it waiting."""
        rank, message, _, _ = entry
        target = message.partner
        key = target, message.group, message.tag
        for operation in self._receives[key]:
            if operation.ranks[0] in (rank, ANY_SOURCE):
                self._receives[key].remove(operation)
                operation.ranks = rank, target
                operation.entries.insert(0, entry)
                self._links.price_pair(operation)
                return operation
        operation = Operation("send", [entry], (rank, target), 2)
        self._sends[key].append(operation)
        return operation

    def _receive(self, entry: Entry) -> Operation:
        """Finds a receive the first of the sends that it can take, or leaves it waiting."""
        rank, message, _, _ = entry
        key, source = (rank, message.group, message.tag), self.source(rank, message)
        for operation in self._sends[key]:
            if source in (operation.ranks[0], ANY_SOURCE):
                self._sends[key].remove(operation)
                operation.entries.append(entry)
                self._links.price_pair(operation)
                return operation
        operation = Operation("send", [entry], (source, rank), 2)
        self._receives[key].append(operation)
        return operation
