"""From the live events: who waits for whom, what does not fit together, and the verdict in words.

A rank is blocked if it waits for an operation that some partner has not joined. Start with all blocked ranks; drop
each one that a rank outside the set may still free; repeat. What remains is deadlocked for ever, even while others
compute.

Waits belong to threads. A rank is blocked if all of its threads are that could act by themselves; which those are, only
the rank can tell, and is asked when all else says that it is stuck. A wait that gives up by itself blocks nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from distlab.events import ANY_SOURCE, P2P, Done, Drop, Exit, Fail, MakeGroup, Message, Wait
from distlab.ranks.verdicts.meetings import Meetings
from distlab.ranks.verdicts.stuck_words import apart_words, channel_words, cycle_words, dropped_words, gone_words

NOBODY: Mapping[int, Sequence[int]] = MappingProxyType({})


@dataclass
class _Waiting:
    """What one thread waits for, a message or that a group is made, and whether it would give up by itself."""

    wanted: Message | MakeGroup
    gives_up: bool = False


@dataclass
class _Rank:
    """What is known of one rank: its unfinished messages and the threads that issued them, which of their Works it
    dropped, what its threads wait for, how it left."""

    messages: dict[int, Message] = field(default_factory=dict)
    issued_by: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    waits: dict[int, _Waiting] = field(default_factory=dict)
    left: str = ""


class Diagnosis:
    """Follows the events of all ranks as they come in.

    ``meetings`` has what belongs together; ``mixed`` the ranks and groups of which two threads had collectives under
    way at once. ``place_of`` says in words where an event's place is.
    """

    def __init__(self, num_ranks: int, place_of: Callable[[int], str] = lambda place: ""):
        self.meetings, self._place_of = Meetings(), place_of
        self.mixed: dict[tuple[int, int], None] = {}
        self._ranks = [_Rank() for _ in range(num_ranks)]

    def learn(self, rank: int, event, thread: int = 0) -> None:
        """Takes in one event of a thread of a rank."""
        state = self._ranks[rank]
        if isinstance(event, Message):
            self._note_mixing(rank, event, thread)
            state.messages[event.id] = event
            state.issued_by[event.id] = thread
            self.meetings.join(rank, event)
        elif isinstance(event, Wait):
            if event.id in state.messages:
                state.waits[thread] = _Waiting(state.messages[event.id], event.limit > 0)
        elif isinstance(event, Done):
            self.meetings.end(rank, state.messages.pop(event.id, None), event)
            state.issued_by.pop(event.id, None)
            state.waits.pop(thread, None)
        elif isinstance(event, Fail):
            state.waits.pop(thread, None)
        elif isinstance(event, Drop):
            state.dropped.add(event.id)
        elif isinstance(event, MakeGroup):
            self.meetings.make(rank, event)
            state.waits.pop(thread, None)
            if not event.is_made:
                state.waits[thread] = _Waiting(event)
        elif isinstance(event, Exit):
            self.leave(rank, event.how)

    def _note_mixing(self, rank: int, message: Message, thread: int) -> None:
        """Two threads that use one group at once leave to chance which collective comes first."""
        state = self._ranks[rank]
        if message.kind in P2P or len(set(state.issued_by.values()) | {thread}) < 2:
            return
        for id, other in state.messages.items():
            if other.group == message.group and other.kind not in P2P and state.issued_by[id] != thread:
                self.mixed[rank, message.group] = None

    def leave(self, rank: int, how: str) -> None:
        """A rank has "returned", "raised" or "died": it joins nothing any more."""
        state = self._ranks[rank]
        state.left = state.left or how
        state.waits.clear()

    def stuck(self, acting: Mapping[int, Sequence[int]] = NOBODY, patient: bool = False) -> tuple[int, ...]:
        """The ranks that can never go on, if their other threads than those known to wait do nothing.

        ``acting`` has the threads that could, by rank, where the rank was asked. ``patient`` counts waits that give up
        by themselves as if they did not.
        """
        stuck = {
            (rank, thread): waiting.wanted
            for rank, state in enumerate(self._ranks)
            for thread, waiting in state.waits.items()
            if self._is_blocked(rank, waiting.wanted) and (patient or not waiting.gives_up)
        }
        while True:
            lost = self._lost(stuck, acting)
            free = [(rank, thread) for (rank, thread), wanted in stuck.items() if not self._is_held(rank, wanted, lost)]
            if not free:
                return tuple(sorted(lost))
            for agent in free:
                del stuck[agent]

    def _lost(self, stuck: Mapping[tuple[int, int], object], acting: Mapping[int, Sequence[int]]) -> set[int]:
        """The ranks of which every thread that could act is stuck."""
        return {
            rank
            for rank in {rank for rank, _ in stuck}
            if all((rank, thread) in stuck for thread in (*self._ranks[rank].waits, *acting.get(rank, ())))
        }

    @property
    def has_lost_a_rank(self) -> bool:
        """Whether a rank has left by an error, or died."""
        return any(state.left not in ("", "returned") for state in self._ranks)

    def is_blocked(self, rank: int) -> bool:
        """Whether a thread of a rank waits for something that not all partners have joined."""
        return any(self._is_blocked(rank, waiting.wanted) for waiting in self._ranks[rank].waits.values())

    def _is_blocked(self, rank: int, wanted: Message | MakeGroup) -> bool:
        return not self.meetings.is_joined(rank, wanted) or bool(self._dropped_by(rank, wanted))

    def _dropped_by(self, rank: int, wanted: Message | MakeGroup) -> tuple[int, int] | None:
        """The rank and id of the other side of the send or receive that a rank waits for, if its Work was dropped."""
        if not isinstance(wanted, Message) or wanted.kind not in P2P:
            return None
        partner = self.meetings.partner(rank, wanted.id)
        return partner if partner and partner[1] in self._ranks[partner[0]].dropped else None

    def _is_held(self, rank: int, wanted: Message | MakeGroup, lost: set[int]) -> bool:
        """Whether only ranks that are stuck or gone could free this one."""
        missing = self.meetings.missing(rank, wanted)
        if self._dropped_by(rank, wanted):
            return True
        gone = {other for other in missing if other in lost or self._ranks[other].left}
        return gone == missing if getattr(wanted, "peer", None) == ANY_SOURCE else bool(gone)

    def verdict(self, stuck: tuple[int, ...]) -> str:
        """Says why the ranks ``stuck`` can never go on: a Work was dropped, they miss each other, a partner left, or
        they form a circle."""
        waits = {rank: wanted for rank in stuck if (wanted := self.wanted(rank))}
        left = {rank: state.left for rank, state in enumerate(self._ranks) if state.left}
        missed = {rank: self._missed(rank, wanted) for rank, wanted in waits.items()}
        return (
            self._dropped(waits)
            or channel_words(missed, left)
            or self._gone(waits, left)
            or apart_words(waits, self.meetings.members, self.meetings.name_of)
            or cycle_words(waits, lambda rank: self.meetings.missing(rank, waits[rank]))
        )

    def wanted(self, rank: int) -> Message | MakeGroup | None:
        """What a rank waits for that not all partners have joined: its main thread, or else another."""
        waits = (waiting.wanted for waiting in self._ranks[rank].waits.values())
        return next((wanted for wanted in waits if self._is_blocked(rank, wanted)), None)

    def _missed(self, rank: int, wanted: Message | MakeGroup) -> list[Message]:
        """What a rank has begun to send or receive and found no partner for, what it waits for first."""
        messages = [m for m in self._ranks[rank].messages.values() if m.kind in P2P]
        open_ones = [message for message in messages if self.meetings.partner(rank, message.id) is None]
        return sorted(open_ones, key=lambda message: message is not wanted)

    def _dropped(self, waits: dict[int, Message | MakeGroup]) -> str:
        messages = {rank: wanted for rank, wanted in waits.items() if isinstance(wanted, Message)}
        for rank, message in messages.items():
            if partner := self._dropped_by(rank, message):
                other, id = partner
                place = self._place_of(self._ranks[other].messages[id].place)
                return dropped_words(other, self._ranks[other].left, rank, message, place)
        return ""

    def _gone(self, waits: dict[int, Message | MakeGroup], left: dict[int, str]) -> str:
        for rank, wanted in waits.items():
            gone = sorted(self.meetings.missing(rank, wanted) & set(left))
            if gone and getattr(wanted, "peer", None) != ANY_SOURCE:
                same = [other for other in waits if _same_operation(waits[other], wanted)]
                return gone_words(gone, left[gone[0]], same, wanted)
        return ""

    def unwaited_send(self) -> str:
        """Names a rank that returned before the send it had begun was waited for; "" if there is none."""
        for rank, state in enumerate(self._ranks):
            for message in state.messages.values():
                if state.left == "returned" and message.kind == "send":
                    received, place = message._replace(kind="recv"), self._place_of(message.place)
                    return dropped_words(rank, state.left, message.partner, received, place)
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
        strict.meetings.learn_group(group, str(group), members, world=group)
    left = [deque(_of_main_thread(history)) for history in histories]
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(left):
            while events and not strict.is_blocked(rank):
                strict.learn(rank, events.popleft())
                moved = True
    return any(left)


def _of_main_thread(history: Sequence) -> list:
    """A rank's events without the waits of other threads, which hold up only those."""
    others = {event.id for event in history if type(event) is Wait and event.when == "thread"}
    return [event for event in history if not (type(event) in (Wait, Done) and event.id in others)]
