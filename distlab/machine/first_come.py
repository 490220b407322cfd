"""FirstCome: receives of any source, which take what is sent first."""

from __future__ import annotations

from collections import defaultdict

from distlab.events import ANY_SOURCE, Done, Message
from distlab.machine.links import Links
from distlab.machine.operation import Entry, Operation
from distlab.recording import Recording


class FirstCome:
    """Puts sends and receives together while the simulation runs, where a receive takes what is sent first.

    That is so for receives of any source whose source was not recorded, and for all else with the same destination,
    group and tag: ``keys``.
    """

    def __init__(self, recording: Recording, links: Links):
        self._links = links
        self._sources = {
            (rank, event.id): event.source
            for rank, history in enumerate(recording.ranks)
            for event in history
            if type(event) is Done and event.source is not None
        }
        self.keys = {
            (rank, event.group, event.tag)
            for rank, history in enumerate(recording.ranks)
            for event in history
            if type(event) is Message and event.kind == "recv" and self.source(rank, event) is None
        }
        self._sends: defaultdict[tuple, list[Operation]] = defaultdict(list)
        self._receives: defaultdict[tuple, list[Operation]] = defaultdict(list)

    def source(self, rank: int, receive: Message) -> int | None:
        """Who sends to a receive, None if that was neither said nor recorded."""
        if receive.peer is None or receive.peer == ANY_SOURCE:
            return self._sources.get((rank, receive.id))
        return receive.peer

    def meet(self, entry: Entry) -> Operation:
        """The operation that a message, issued now, is part of."""
        return self._send(entry) if entry[1].kind == "send" else self._receive(entry)

    def _send(self, entry: Entry) -> Operation:
        """Finds a send the first of the receives that can take it, or leaves it waiting."""
        rank, message, _, _ = entry
        key = message.peer, message.group, message.tag
        for operation in self._receives[key]:
            if operation.ranks[0] in (rank, None):
                self._receives[key].remove(operation)
                operation.ranks = rank, message.peer
                operation.entries.insert(0, entry)
                self._links.price_pair(operation)
                return operation
        operation = Operation("send", [entry], (rank, message.peer), 2)
        self._sends[key].append(operation)
        return operation

    def _receive(self, entry: Entry) -> Operation:
        """Finds a receive the first of the sends that it can take, or leaves it waiting."""
        rank, message, _, _ = entry
        key, source = (rank, message.group, message.tag), self.source(rank, message)
        for operation in self._sends[key]:
            if source in (operation.ranks[0], None):
                self._sends[key].remove(operation)
                operation.entries.append(entry)
                self._links.price_pair(operation)
                return operation
        operation = Operation("send", [entry], (source, rank), 2)
        self._receives[key].append(operation)
        return operation
