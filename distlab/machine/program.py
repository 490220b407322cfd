"""Programs: the ranks' histories made ready for simulation, their messages matched and their work priced.

Reading events once, rank by rank, and keeping little of them is most of what makes replay fast: a simulation jumps from
rank to rank, and memory is slow to follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distlab.events import Compute, Fail, Message, Span, Wait
from distlab.machine.first_come import FirstCome
from distlab.machine.hardware import Machine
from distlab.machine.links import Links
from distlab.machine.matching import AnySource, Matching
from distlab.machine.operation import Entry, Operation
from distlab.machine.reasons import ReplayError
from distlab.recording import Recording

# COMPUTE has seconds, MARK a span's name, WAIT and ISSUE an operation. Where only the simulation shows which operation
# that is, AWAIT has a message's id and MEET an Entry.
COMPUTE, MARK, WAIT, AWAIT, ISSUE, MEET = range(6)


@dataclass
class Programs:
    """By rank: ``steps``, where each step is two items, what to do and with what; and what is never waited for.

    ``never_waited`` has operations (None for a MEET) and messages by the message's id. ``first_come`` is for MEET.
    """

    steps: list[list]
    never_waited: list[dict[int, tuple[Operation | None, Message]]]
    first_come: FirstCome


def compile_programs(recording: Recording, machine: Machine, links: Links) -> Programs:
    """Matches the messages of a recording and prices its work.

    Raises ReplayError where ranks issue different collectives, or wait for what they have not issued.
    """
    try:
        return _Compiler(recording, machine, links).compile()
    except AnySource:
        return _CompilerForAnySource(recording, machine, links).compile()


class _Compiler:
    """Reads one rank after the other, and leaves nothing to the simulation."""

    def __init__(self, recording: Recording, machine: Machine, links: Links):
        self.recording, self.machine = recording, machine
        self.matching = Matching(recording, links)
        self.first_come = FirstCome((), links)
        self.pairing: dict[str, Callable[[Entry], Operation | None]] = {
            "send": self.matching.send,
            "recv": self.matching.receive,
        }

    def compile(self) -> Programs:
        ranks = [self.rank(rank) for rank in range(self.recording.world_size)]
        return Programs([steps for steps, _ in ranks], [left for _, left in ranks], self.first_come)

    def rank(self, rank: int) -> tuple[list, dict[int, tuple[Operation | None, Message]]]:
        """One rank's steps, and what is left of its messages."""
        flops_per_s, bytes_per_s = self.machine.achieved_flops, self.machine.memory_bytes_per_s
        overhead_s = self.machine.operator_overhead_s
        pairing, join = self.pairing, self.matching.join
        steps: list = []
        left: dict[int, tuple[Operation | None, Message]] = {}
        spans: list[tuple[str, float | None, int]] = []
        label, num_issued = "", 0
        given_up = {event.id for event in self.recording.ranks[rank] if type(event) is Fail}
        for event in self.recording.ranks[rank]:
            if type(event) is Message:
                num_issued += 1
                entry = (rank, event, label, num_issued)
                operation = pairing.get(event.kind, join)(entry)
                steps += (ISSUE, operation) if operation is not None else (MEET, entry)
                left[event.id] = operation, event
            elif type(event) is Wait:
                if event.when == "stream" or event.id in given_up:
                    continue
                operation, message = left.pop(event.id, None) or self.waited_before(rank, event)
                if message is not None and event.when != "thread":
                    steps += (WAIT, operation) if operation is not None else (AWAIT, event.id)
            elif type(event) is Compute:
                seconds = event.flops / flops_per_s + event.bytes / bytes_per_s + event.operators * overhead_s
                if event.products:  # the larger of FLOPs and bytes counts: the FLOPs, which are in, or more
                    for flops, bytes, count in event.products:
                        seconds += count * max(0.0, bytes / bytes_per_s - flops / flops_per_s)
                if seconds > 0:
                    steps += (COMPUTE, seconds)
            elif type(event) is Span:
                if event.name:
                    spans.append((event.name, event.flops, len(steps)))
                elif spans:
                    self.charge(steps, *spans.pop())
                label = spans[-1][0] if spans else ""
                steps += (MARK, event.name)
        for span in reversed(spans):
            self.charge(steps, *span)
        return steps, left

    def charge(self, steps: list, name: str, flops: float | None, first: int) -> None:
        """Has the work since the step ``first``, that of a span, cost its FLOPs if it names them, and nothing else.

        They are shared out as the seconds were; if there were none, they stand at the end.
        """
        if flops is None:
            return
        seconds = flops / self.machine.achieved_flops
        work = [number for number in range(first, len(steps), 2) if steps[number] == COMPUTE]
        total = sum(steps[number + 1] for number in work)
        for number in work:
            steps[number + 1] = seconds * (steps[number + 1] / total)
        if not work:
            steps += (COMPUTE, seconds)

    def waited_before(self, rank: int, wait: Wait) -> tuple[None, None]:
        """What a wait gets that is not the first for its message: nothing to wait for."""
        if wait.id not in {message.id for message in self.recording.messages(rank)}:
            raise ReplayError(f"rank {rank} waits for message {wait.id}, which it has not issued.")
        return None, None


class _CompilerForAnySource(_Compiler):
    """Leaves to the simulation, in ``first_come``, which sends the receives of any source take."""

    def __init__(self, recording: Recording, machine: Machine, links: Links):
        super().__init__(recording, machine, links)
        self.first_come = FirstCome(recording.ranks, links)
        self.pairing = {"send": self.send, "recv": self.receive}

    def send(self, entry: Entry) -> Operation | None:
        """The operation that a send is part of, None if only the simulation will know."""
        message = entry[1]
        is_open = (message.peer, message.group, message.tag) in self.first_come.keys
        return None if is_open else self.matching.send(entry)

    def receive(self, entry: Entry) -> Operation | None:
        """The operation that a receive is part of, None if only the simulation will know."""
        rank, message, label, place = entry
        if (rank, message.group, message.tag) in self.first_come.keys:
            return None
        source = self.first_come.source(rank, message)
        return self.matching.receive((rank, message._replace(peer=source), label, place))
