"""From the live events: who waits for whom, what does not fit together, and the verdict in words.

A rank is blocked if it waits for an operation that some partner has not joined. Start with all blocked ranks; drop
each one that a rank outside the set may still free; repeat. What remains is deadlocked for ever, even while others
compute.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from distlab.events import ANY_SOURCE, P2P, Done, Drop, Exit, MakeGroup, Message, Wait
from distlab.ranks.words import (
    channel_words,
    collective_words,
    cycle_words,
    dropped_words,
    gone_words,
    group_words,
    is_like,
    pair_words,
)


@dataclass
class Misfit:
    """Operations that met and do not fit together; ``messages`` are by rank, and more may still come in."""

    words: Callable[[], str]
    messages: dict[int, Message | MakeGroup]
    expected: int

    @property
    def is_complete(self) -> bool:
        """Whether all that belong together have come in."""
        return len(self.messages) == self.expected


@dataclass
class _Rank:
    """What is known of one rank: its unfinished messages, which of their Works it dropped, the one it waits for, the
    group it is making, how it left."""

    messages: dict[int, Message] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    waits_for: Message | MakeGroup | None = None
    left: str = ""


class Diagnosis:
    """Follows the events of all ranks as they come in; groups are numbered alike on all ranks."""

    def __init__(self, num_ranks: int):
        self._ranks = [_Rank() for _ in range(num_ranks)]
        self._members: dict[int, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}
        self._made: dict[str, dict[int, MakeGroup]] = defaultdict(dict)
        self._joined: dict[tuple[int, int], dict[int, Message]] = defaultdict(dict)
        self._making: dict[int, set[int]] = defaultdict(set)
        self._channels: dict[tuple, deque] = defaultdict(deque)
        self._matched: dict[tuple[int, int], tuple[int, int]] = {}  # with the other side, of a send or receive
        self._guessed: dict[tuple[int, int], tuple[int, Message]] = {}
        self._misfit: Misfit | None = None
        self._ended: dict[tuple[int, int], float] = {}
        self._left_early = False

    # what comes in

    def learn_group(self, rank: int, group: int, name: str, members: tuple[int, ...]) -> None:
        """A rank names a group that it is going to make."""
        self._members[group] = members
        self._names[group] = name

    def learn(self, rank: int, event) -> None:
        """Takes in one event of a rank."""
        state = self._ranks[rank]
        if isinstance(event, Message):
            state.messages[event.id] = event
            (self._match_pair if event.kind in ("send", "recv") else self._match_collective)(rank, event)
        elif isinstance(event, Wait):
            state.waits_for = state.messages.get(event.id)
        elif isinstance(event, Done):
            if event.source is not None:
                self._correct_guess(rank, state.messages.get(event.id), event.source)
            if self._matched.pop((rank, event.id), None) is None:
                self._ended[rank, event.id] = event.end
            state.messages.pop(event.id, None)
            state.waits_for = None
        elif isinstance(event, Drop):
            state.dropped.add(event.id)
        elif isinstance(event, MakeGroup):
            self._match_group(rank, event)
            state.waits_for = None if event.is_made else event
        elif isinstance(event, Exit):
            self.leave(rank, event.how)

    def leave(self, rank: int, how: str) -> None:
        """A rank has "returned", "raised" or "died": it joins nothing any more."""
        state = self._ranks[rank]
        state.left = state.left or how
        state.waits_for = None

    def _complain(self, misfit: Misfit) -> None:
        self._misfit = self._misfit or misfit

    def _match_group(self, rank: int, event: MakeGroup) -> None:
        self._making[event.group].add(rank)
        name = self._names[event.group]
        made = self._made[name]
        made[rank] = event
        if len({theirs.group for theirs in made.values()}) > 1:
            self._complain(Misfit(lambda: self._group_words(name), made, len(self._ranks)))

    def _group_words(self, name: str) -> str:
        makers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, event in sorted(self._made[name].items()):
            makers[self._members[event.group]].append(rank)
        return group_words(name, makers)

    def _match_collective(self, rank: int, message: Message) -> None:
        key = message.group, message.sequence
        joined = self._joined[key]
        joined[rank] = message
        members = self._members[message.group]
        if not is_like(message, next(iter(joined.values()))) and collective_words(joined, members):
            self._complain(Misfit(lambda: collective_words(joined, members), joined, len(members)))
        if len(joined) == len(members):
            self._match(joined)
            del self._joined[key]

    def _match(self, parts: Mapping[int, Message]) -> None:
        """Notes that all have joined an operation, and whether one had left it by then: logs are read rank by rank."""
        last = max(message.start for message in parts.values())
        for rank, message in parts.items():
            self._matched[rank, message.id] = next(((o, m.id) for o, m in parts.items() if o != rank), (rank, 0))
            self._left_early |= self._ended.pop((rank, message.id), last) < last

    def _match_pair(self, rank: int, message: Message) -> None:
        partner = self._open_partner(rank, message)
        if partner is None:
            source, target = (rank, message.peer) if message.kind == "send" else (message.peer, rank)
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

    def _correct_guess(self, rank: int, receive: Message | None, group_rank: int) -> None:
        """A receive from any source tells whom it came from: if that was not the guess, the two senders change
        places."""
        if receive is None or (rank, receive.id) not in self._guessed:
            return
        guessed, theirs = self._guessed.pop((rank, receive.id))
        source = self._members[receive.group][group_rank]
        if source == guessed:
            return
        self._matched.pop((guessed, theirs.id), None)
        self._channels["send", receive.group, guessed, rank, receive.tag].appendleft((guessed, theirs))
        self._match_pair(rank, receive._replace(peer=source))

    def _open_partner(self, rank: int, message: Message) -> tuple[int, Message] | None:
        """Takes the first message that waits on the other side of this one's channel, with its rank."""
        group, tag = message.group, message.tag
        if message.kind == "send":
            keys = [("recv", group, source, message.peer, tag) for source in (rank, ANY_SOURCE)]
        else:
            sources = self._members[group] if message.peer == ANY_SOURCE else (message.peer,)
            keys = [("send", group, source, rank, tag) for source in sources]
        return next((self._channels[key].popleft() for key in keys if self._channels[key]), None)

    # what it means

    @property
    def left_early(self) -> bool:
        """Whether a rank was done with an operation before all had joined it."""
        return self._left_early or bool(self._ended)

    def waiting(self, rank: int) -> Message | MakeGroup | None:
        """What a rank waits for, if it does."""
        return self._ranks[rank].waits_for

    def stuck(self) -> tuple[int, ...]:
        """The ranks that can never go on."""
        stuck = {rank for rank in range(len(self._ranks)) if self.is_blocked(rank)}
        while free := {rank for rank in stuck if not self._is_held(rank, stuck)}:
            stuck -= free
        return tuple(sorted(stuck))

    def is_blocked(self, rank: int) -> bool:
        """Whether a rank waits for something that not all partners have joined."""
        wanted = self._ranks[rank].waits_for
        if isinstance(wanted, MakeGroup):
            return bool(self._missing(rank))
        return wanted is not None and ((rank, wanted.id) not in self._matched or bool(self._dropper(rank)))

    def _dropper(self, rank: int) -> tuple[int, ...]:
        """Who dropped the Work of the other side of the send or receive that a rank waits for; nobody, or one."""
        wanted = self._ranks[rank].waits_for
        if isinstance(wanted, MakeGroup) or wanted.kind not in P2P or (rank, wanted.id) not in self._matched:
            return ()
        other, id = self._matched[rank, wanted.id]
        return (other,) if id in self._ranks[other].dropped else ()

    def _missing(self, rank: int) -> set[int]:
        """The partners that have not joined what a rank waits for; for a receive from any source, all that might
        send."""
        wanted = self._ranks[rank].waits_for
        if isinstance(wanted, MakeGroup):
            return set(self._members[wanted.group]) - self._making[wanted.group]
        if wanted.kind not in ("send", "recv"):
            return set(self._members[wanted.group]) - set(self._joined.get((wanted.group, wanted.sequence), ()))
        return set(self._members[wanted.group]) - {rank} if wanted.peer == ANY_SOURCE else {wanted.peer}

    def _is_held(self, rank: int, stuck: set[int]) -> bool:
        """Whether only ranks that are stuck or gone could free this one."""
        wanted, missing = self._ranks[rank].waits_for, self._missing(rank)
        if self._dropper(rank):
            return True
        lost = {other for other in missing if other in stuck or self._ranks[other].left}
        return lost == missing if getattr(wanted, "peer", None) == ANY_SOURCE else bool(lost)

    def misfit(self) -> Misfit | None:
        """The first operations that do not fit together, if there are any."""
        return self._misfit

    def verdict(self, stuck: tuple[int, ...]) -> str:
        """Says why the ranks ``stuck`` can never go on: a Work was dropped, they miss each other, a partner left, or
        they form a circle."""
        waits = {rank: self._ranks[rank].waits_for for rank in stuck}
        left = {rank: state.left for rank, state in enumerate(self._ranks) if state.left}
        missed = {rank: self._missed(rank) for rank in stuck}
        words = self._dropped(waits) or channel_words(missed, left) or self._gone(waits, left)
        return words or cycle_words(waits, self._missing)

    def _missed(self, rank: int) -> list[Message]:
        """What a rank has begun to send or receive and found no partner for, what it waits for first."""
        messages = [m for m in self._ranks[rank].messages.values() if m.kind in P2P]
        open_ones = [message for message in messages if (rank, message.id) not in self._matched]
        return sorted(open_ones, key=lambda message: message is not self._ranks[rank].waits_for)

    def _dropped(self, waits: dict[int, Message | MakeGroup]) -> str:
        for rank, wanted in waits.items():
            for other in self._dropper(rank):
                return dropped_words(other, self._ranks[other].left, rank, wanted)
        return ""

    def _gone(self, waits: dict[int, Message | MakeGroup], left: dict[int, str]) -> str:
        for rank, wanted in waits.items():
            gone = sorted(self._missing(rank) & set(left))
            if gone and getattr(wanted, "peer", None) != ANY_SOURCE:
                same = [other for other in waits if _same_operation(waits[other], wanted)]
                return gone_words(gone, left[gone[0]], same, wanted)
        return ""

    def unwaited_send(self) -> str:
        """Names a rank that returned before the send it had begun was waited for; "" if there is none."""
        for rank, state in enumerate(self._ranks):
            for message in state.messages.values():
                if state.left == "returned" and message.kind == "send":
                    return dropped_words(rank, state.left, message.peer, message._replace(kind="recv"))
        return ""


def _same_operation(mine, other) -> bool:
    if type(mine) is not type(other):
        return False
    if isinstance(mine, MakeGroup):
        return mine.group == other.group
    return (mine.kind, mine.group, mine.sequence, mine.peer) == (other.kind, other.group, other.sequence, other.peer)


def relies_on_buffering(histories: Sequence[Sequence], groups: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the run would have hung had every operation waited for all its members, as NCCL's do.

    gloo lets some ranks leave a broadcast, scatter or gather early.
    """
    strict = Diagnosis(len(histories))
    for group, members in groups.items():
        strict.learn_group(0, group, str(group), members)
    left = [deque(history) for history in histories]
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(left):
            while events and not strict.is_blocked(rank):
                strict.learn(rank, events.popleft())
                moved = True
    return any(left)
