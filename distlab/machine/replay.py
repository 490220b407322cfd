"""replay(): a recording on a machine, as a simulation by discrete events; exact, and the same everywhere.

1. A product takes the larger of its FLOPs / achieved rate and its bytes (operands and result) / memory bandwidth, any
   other operator its bytes / memory bandwidth; work is the sum of its operators, + operators × overhead. Where a
   recording has no bytes of its products, they take their FLOPs alone.
2. A rank has a compute clock and, for each class of link (inside a node, between nodes), a send clock and a receive
   clock. A send takes the sender's send clock and the receiver's receive clock, a collective both of every member. A
   send starts no sooner than its receive is issued.
3. Ranks advance in order of their compute clocks, ties by rank. An operation is matched when its last member issues it,
   and takes the clocks in order of matching; of those matched at the same moment, in order of their places in their
   ranks' histories. So how ranks are numbered decides nothing, but for two collectives that tie in this too, and for a
   receive of any source, not recorded whose, that could take either of two sends issued at the same moment.
4. A wait moves the compute clock to the operation's end, wherever in the history it stands, but for that of a stream
   (FSDP's, which waits again at the end of the backward pass). What is never waited for takes its links and moves no
   compute clock; the timeline's notes say so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from operator import attrgetter

from distlab.machine.dtypes import in_dtype
from distlab.machine.hardware import Machine
from distlab.machine.links import Links
from distlab.machine.operation import Entry, Operation
from distlab.machine.program import COMPUTE, ISSUE, WAIT, compile_programs
from distlab.machine.reasons import ReplayError, never_waited, stuck
from distlab.machine.replayed import Replayed
from distlab.machine.timeline import SpanTime, Timeline
from distlab.recording import Recording

_TURN = attrgetter("turn")


def replay(recording: Recording, machine: Machine, dtype: str | None = None) -> Timeline:
    """Returns when the recorded ranks would have done what they did on ``machine``.

    ``dtype`` ("bfloat16") sends every message of floating point numbers as if its elements were of that type; work
    stays as it was recorded. Raises ReplayError saying who waits for whom if the recording cannot finish, ValueError
    for a dtype or a kind of message that is not known.
    """
    if dtype is not None:
        recording = in_dtype(recording, dtype)
    with _collecting_no_garbage():
        simulation = _Simulation(recording, machine)
        simulation.run()
    replayed = Replayed(simulation.lanes, simulation.operations)
    return Timeline(
        f"modelled on {machine.describe(recording.world_size)}",
        replayed.segments,
        replayed.arrows,
        simulation.spans,
        begin=0.0,
        end=max(simulation.ends, default=0.0),
        notes=(
            *recording.notes,
            *simulation.links.chosen(),
            *never_waited(recording, simulation.programs.never_waited),
        ),
        as_if=recording.as_if,
        path_to=replayed.critical_path,
    )


class _Simulation:
    """The state between two steps, in lists by rank.

    A rank runs ahead until it must wait. By then all that it has issued has its time, and nothing that anybody issues
    later can be earlier than the earliest operation that is matched: whoever issues it waits for that one or a later
    one. So operations can be settled in order of the times at which they were matched.
    """

    def __init__(self, recording: Recording, machine: Machine):
        ranks = range(recording.world_size)
        self.recording = recording
        self.links = Links(len(ranks), machine)
        self.programs = compile_programs(recording, machine, self.links)
        self.steps = [iter(steps) for steps in self.programs.steps]
        self.ranks = [self.advance(rank) for rank in ranks]
        self.ends = [0.0 for _ in ranks]
        self.blocked: list[Operation | None] = [None for _ in ranks]
        self.lanes: list[list] = [[] for _ in ranks]
        self.spans: list[list[SpanTime]] = [[] for _ in ranks]
        self.times: list[float] = []  # a heap of the times that the two below have something for
        self.matched: dict[float, list[Operation]] = {}
        self.meetings: dict[float, list[int]] = {}  # ranks that issue what must be issued in order of time
        self.operations: list[Operation] = []

    def run(self) -> None:
        """Lets ranks run ahead and settles what they issue, until all have ended; raises ReplayError if some cannot."""
        for program in self.ranks:
            next(program, None)
        while self.times:
            now = self.times[0]
            if now in self.meetings:
                for rank in sorted(self.meetings.pop(now)):
                    next(self.ranks[rank], None)
            elif now in self.matched:
                self.settle(self.matched.pop(now))
            else:
                heappop(self.times)
        if any(self.blocked):
            to_come = [{what for code, what in zip(steps, steps) if code == ISSUE} for steps in self.steps]
            raise ReplayError(stuck(self.recording, self.blocked, to_come))

    def advance(self, rank: int) -> Iterator[None]:
        """Takes a rank's steps; yields where it must wait, and where others may have to issue first.

        Nearly all time goes here.
        """
        matched, lane, steps = self.matched, self.lanes[rank], self.steps[rank]
        clock, met_at, label, spans = 0.0, -1.0, "", [("", 0.0)]
        met: dict[int, Operation] = {}
        for what, operand in zip(steps, steps):
            if what >= ISSUE:
                if what == ISSUE:
                    operation = operand
                else:
                    if clock > met_at:
                        met_at = clock
                        self.put(self.meetings, clock, rank)
                        yield
                    operation = self.meet(operand, met)
                if clock > operation.start or clock == operation.start and rank > operation.last:
                    operation.start, operation.last = clock, rank
                operation.missing -= 1
                if not operation.missing:
                    if operation.start in matched:
                        matched[operation.start].append(operation)
                    else:
                        self.put(matched, operation.start, operation)
                continue
            if what >= WAIT:
                operation = operand if what == WAIT else met.pop(operand)
                end = operation.end
                if end < 0.0:
                    self.blocked[rank] = operation
                    yield
                    end = operation.end
            elif what == COMPUTE:
                end, operation = clock + operand, None
            else:
                label = self.mark(rank, operand, clock, spans)
                continue
            if end > clock:
                lane += (clock, end, label, operation)
                clock = end
        self.ends[rank] = clock

    def put(self, waiting: dict[float, list], time: float, what: object) -> None:
        """Notes something for a time."""
        heappush(self.times, time)
        waiting.setdefault(time, []).append(what)

    def settle(self, matched: list[Operation]) -> None:
        """Gives what was matched at one moment its place on the links, and lets go on who waits for it."""
        blocked, ranks, links = self.blocked, self.ranks, self.links
        if len(matched) > 1:
            matched.sort(key=_TURN)
        for operation in matched:
            if operation.kind == "send":
                links.take_pair(operation)
            else:
                links.take_collective(operation)
            for rank in operation.ranks:
                if blocked[rank] is operation:
                    blocked[rank] = None
                    next(ranks[rank], None)
        self.operations += matched

    def meet(self, entry: Entry, met: dict[int, Operation]) -> Operation:
        """Issues a message whose other side shows only now; ``met`` keeps the operation for its wait."""
        rank, message, _, _ = entry
        operation = met[message.id] = self.programs.first_come.meet(entry)
        if message.id in self.programs.never_waited[rank]:
            self.programs.never_waited[rank][message.id] = operation, message
        return operation

    def mark(self, rank: int, name: str, clock: float, spans: list[tuple[str, float]]) -> str:
        """Begins a labelled stretch, or ends one (no name); returns the label that holds from here."""
        if name:
            spans.append((name, clock))
        elif len(spans) > 1:
            name, start = spans.pop()
            self.spans[rank].append(SpanTime(rank, start, clock, name, len(spans) - 1))
        return spans[-1][0]


@contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Python's collector would walk again and again through millions of things that are all kept.

    At the end they join the things that are old already, so that it does not walk through them at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()
