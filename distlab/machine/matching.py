"""Matching: which messages of a recording belong together."""

from __future__ import annotations

from collections import defaultdict, deque

from distlab.events import ANY_SOURCE
from distlab.machine.links import Links
from distlab.machine.operation import Entry, Operation
from distlab.machine.reasons import ReplayError, mismatch
from distlab.recording import Recording


class AnySource(Exception):
    """There is a receive of any source, and nobody has looked for those."""


class Matching:
    """Puts messages together, whatever the order of ranks: each method returns the operation an entry is part of.

    A rank's k-th collective of a group meets the others' k-th, its k-th send the k-th receive of the same (source,
    destination, group, tag). Whatever is complete gets its price.
    """

    def __init__(self, recording: Recording, links: Links):
        self._recording, self._links = recording, links
        self._collectives: list[list[Operation]] = [[] for _ in recording.groups]
        self._joined: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._sends: defaultdict[tuple, deque[Operation]] = defaultdict(deque)
        self._receives: defaultdict[tuple, deque[Operation]] = defaultdict(deque)

    def join(self, entry: Entry) -> Operation:
        """Adds a rank to the collective of its group that it has not joined yet."""
        rank, message, _, _ = entry
        group, kind = message.group, message.kind
        of_group, number = self._collectives[group], self._joined[rank, group]
        if number == len(of_group):
            members = self._recording.groups[group].members
            of_group.append(Operation(kind, [], members, len(members)))
        operation = of_group[number]
        if operation.kind != kind:
            raise ReplayError(mismatch(self._recording, number + 1, operation.entries[0], entry))
        operation.entries.append(entry)
        if message.bytes > operation.bytes:
            operation.bytes = message.bytes
        if len(operation.entries) == len(operation.ranks):
            self._links.price_collective(operation)
        self._joined[rank, group] = number + 1
        return operation

    def send(self, entry: Entry) -> Operation:
        """Finds a send its receive, or leaves it waiting."""
        rank, message, _, _ = entry
        target = message.peer
        if target is None:
            raise ReplayError(f"rank {rank} sends message {message.id} to nobody: its peer is None")
        key = rank, target, message.group, message.tag
        if receives := self._receives.get(key):
            operation = receives.popleft()
            operation.entries.insert(0, entry)
            self._links.price_pair(operation)
        else:
            operation = Operation("send", [entry], key[:2], 2)
            self._sends[key].append(operation)
        return operation

    def receive(self, entry: Entry) -> Operation:
        """Finds a receive its send, or leaves it waiting; raises AnySource if it does not say whose."""
        rank, message, _, _ = entry
        source = message.peer
        if source is None or source == ANY_SOURCE:
            raise AnySource
        key = source, rank, message.group, message.tag
        if sends := self._sends.get(key):
            operation = sends.popleft()
            operation.entries.append(entry)
            self._links.price_pair(operation)
        else:
            operation = Operation("send", [entry], key[:2], 2)
            self._receives[key].append(operation)
        return operation
