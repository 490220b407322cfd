"""Which operations of the ranks belong together, from the events as they come in: what met, and what does not fit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distlab.events import ANY_SOURCE, P2P, Done, MakeGroup, Message
from distlab.ranks.verdicts.words import SAME_SHAPE, collective_words, group_words, is_like, pair_words

_MOST_NOTED = 3  # collectives that fit and may be mistakes, of each kind


@dataclass
class Misfit:
    """Operations that met and do not fit together; ``messages`` are by rank, and more may still come in."""

    words: Callable[[], str]
    messages: Mapping[int, Message | MakeGroup]
    expected: int

    @property
    def is_complete(self) -> bool:
        """Whether all that belong together have come in."""
        return len(self.messages) == self.expected


class Meetings:
    """What all ranks have issued, matched by group, number, peer and tag; groups are numbered alike on all ranks.

    ``misfit`` are the first operations that do not fit together. ``met`` are collectives that were called on different
    lines, and ``reshaped`` those of different shapes, a few of each.
    """

    def __init__(self):
        self.members: dict[int, tuple[int, ...]] = {}
        self.misfit: Misfit | None = None
        self.met: dict[tuple, Mapping[int, Message]] = {}
        self.reshaped: dict[tuple, Mapping[int, Message]] = {}
        self._names: dict[int, tuple[int, str]] = {}  # with the world that it is made in
        self._made: dict[tuple[int, str], dict[int, MakeGroup]] = defaultdict(dict)
        self._making: dict[int, set[int]] = defaultdict(set)
        self._joined: dict[tuple[int, int], dict[int, Message]] = defaultdict(dict)
        self._channels: dict[tuple, deque] = defaultdict(deque)
        self._matched: dict[tuple[int, int], tuple[int, int]] = {}  # with the other side, of a send or receive
        self._guessed: dict[tuple[int, int], tuple[int, Message]] = {}
        self._ended: dict[tuple[int, int], float] = {}
        self._left_early = False

    def learn_group(self, group: int, name: str, members: tuple[int, ...], world: int) -> None:
        """A rank names a group that it is going to make in the group ``world``, or that is a world of its own."""
        self.members[group] = members
        self._names[group] = world, name

    def name_of(self, group: int) -> str:
        """A group's own name, if another group has the same members; else ""."""
        alike = [other for other, members in self.members.items() if members == self.members[group]]
        return self._names[group][1] if len(alike) > 1 else ""

    def join(self, rank: int, message: Message) -> None:
        """A rank has issued a message."""
        (self._match_pair if message.kind in P2P else self._match_collective)(rank, message)

    def end(self, rank: int, message: Message | None, done: Done) -> None:
        """A rank is done with a message, the message as far as it is known."""
        if done.source is not None:
            self._correct_guess(rank, message, done.source)
        if self._matched.pop((rank, done.id), None) is None:
            self._ended[rank, done.id] = done.end

    def partner(self, rank: int, id: int) -> tuple[int, int] | None:
        """The rank and id of the other side of a message that all have joined, None if they have not."""
        return self._matched.get((rank, id))

    def is_joined(self, rank: int, wanted: Message | MakeGroup) -> bool:
        """Whether all partners have joined what a rank waits for."""
        if isinstance(wanted, MakeGroup):
            return not self.missing(rank, wanted)
        return (rank, wanted.id) in self._matched

    def missing(self, rank: int, wanted: Message | MakeGroup) -> set[int]:
        """The partners that have not joined what a rank waits for; for a receive from any source, all that might
        send."""
        members = set(self.members[wanted.group])
        if isinstance(wanted, MakeGroup):
            return members - self._making[wanted.group]
        if wanted.kind not in P2P:
            return members - set(self._joined.get((wanted.group, wanted.sequence), ()))
        return members - {rank} if wanted.partner == ANY_SOURCE else {wanted.partner}

    @property
    def left_early(self) -> bool:
        """Whether a rank was done with an operation before all had joined it."""
        return self._left_early or bool(self._ended)

    def _complain(self, misfit: Misfit) -> None:
        self.misfit = self.misfit or misfit

    def make(self, rank: int, event: MakeGroup) -> None:
        """A rank begins to make a group, or has made it."""
        self._making[event.group].add(rank)
        key = world, _ = self._names[event.group]
        made = self._made[key]
        made[rank] = event
        if len({theirs.group for theirs in made.values()}) > 1:
            self._complain(Misfit(lambda: self._group_words(key), made, len(self.members[world])))

    def _group_words(self, key: tuple[int, str]) -> str:
        makers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, event in sorted(self._made[key].items()):
            makers[self.members[event.group]].append(rank)
        return group_words(key[1], makers)

    def _match_collective(self, rank: int, message: Message) -> None:
        key = message.group, message.sequence
        joined = self._joined[key]
        joined[rank] = message
        members = self.members[message.group]
        if not is_like(message, next(iter(joined.values()))) and collective_words(joined, members):
            self._complain(Misfit(lambda: collective_words(joined, members), joined, len(members)))
        if len(joined) == len(members):
            self._match(joined)
            self._compare(joined)
            del self._joined[key]

    def _compare(self, joined: Mapping[int, Message]) -> None:
        """Notes what fits together and may yet be a mistake: calls on several lines, or of several shapes."""
        first = next(iter(joined.values()))
        places, shapes = {m.place for m in joined.values()}, {m.shape for m in joined.values()}
        if len(places) > 1 and 0 not in places and len(self.met) < _MOST_NOTED:
            self.met.setdefault(tuple(sorted((rank, message.place) for rank, message in joined.items())), joined)
        if len(shapes) > 1 and first.kind in SAME_SHAPE and len(self.reshaped) < _MOST_NOTED:
            self.reshaped.setdefault((first.kind, *sorted(shapes)), joined)

    def _match(self, parts: Mapping[int, Message]) -> None:
        """Notes that all have joined an operation, and whether one had left it by then: logs are read rank by rank."""
        last = max(message.start for message in parts.values())
        for rank, message in parts.items():
            self._matched[rank, message.id] = next(((o, m.id) for o, m in parts.items() if o != rank), (rank, 0))
            self._left_early |= self._ended.pop((rank, message.id), last) < last

    def _match_pair(self, rank: int, message: Message) -> None:
        partner = self._open_partner(rank, message)
        if partner is None:
            source, target = (rank, message.partner) if message.kind == "send" else (message.partner, rank)
            self._channels[message.kind, message.group, source, target, message.tag].append((rank, message))
            return
        other, theirs = partner
        pair = {rank: message, other: theirs}
        self._match(pair)
        if ANY_SOURCE in (message.peer, theirs.peer):
            receiver = rank if message.peer == ANY_SOURCE else other
            self._guessed[receiver, pair[receiver].id] = sum(pair) - receiver, pair[sum(pair) - receiver]
            return  # which of several senders it was, only the receiver will know
        if (message.elements, message.dtype) != (theirs.elements, theirs.dtype):
            self._complain(Misfit(lambda: pair_words(pair), pair, 2))

    def _correct_guess(self, rank: int, receive: Message | None, source: int) -> None:
        """A receive from any source tells whom it came from: if that was not the guess, the two senders change
        places."""
        if receive is None or (rank, receive.id) not in self._guessed:
            return
        guessed, theirs = self._guessed.pop((rank, receive.id))
        if source == guessed:
            return
        self._matched.pop((guessed, theirs.id), None)
        self._channels["send", receive.group, guessed, rank, receive.tag].appendleft((guessed, theirs))
        self._match_pair(rank, receive._replace(peer=source))

    def _open_partner(self, rank: int, message: Message) -> tuple[int, Message] | None:
        """Takes the first message that waits on the other side of this one's channel, with its rank."""
        group, tag = message.group, message.tag
        if message.kind == "send":
            keys = [("recv", group, source, message.partner, tag) for source in (rank, ANY_SOURCE)]
        else:
            sources = self.members[group] if message.partner == ANY_SOURCE else (message.partner,)
            keys = [("send", group, source, rank, tag) for source in sources]
        return next((self._channels[key].popleft() for key in keys if self._channels[key]), None)
