"""What must become of a program, by reasoning about rendezvous alone: nothing here is taken from distlab."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import combinations

from tests.fuzz.programs import LEAVE_EARLY, PARTNER, Op, Program, code

SAME_LENGTH = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


@dataclass
class Expected:
    """What must become of a program.

    ``fate`` is "finishes", "deadlocks", "does not fit", "is refused", "fails" (in one of these ways) or "either" (also
    finishes, perhaps). ``stuck`` has what each stuck rank's threads wait for, ``heard`` what each receive brings;
    ``forgets`` says whether something that was started is never waited for.
    """

    fate: str
    stuck: dict[int, list[Op]] = field(default_factory=dict)
    heard: list[list[float]] = field(default_factory=list)
    forgets: bool = False


def expect(program: Program) -> Expected:
    """The fate of a program: what strict and lenient backends agree on."""
    strict, lenient = _Play(program, is_strict=True), _Play(program, is_strict=False)
    if strict.misfit or strict.is_refused:
        both = (strict.misfit or program.in_thread) and strict.is_refused  # the main thread may not come to know
        return Expected("fails" if both else "does not fit" if strict.misfit else "is refused")
    if lenient.misfit or lenient.is_refused:
        return Expected("fails" if strict.stuck == lenient.stuck else "either")
    if not strict.stuck and not lenient.stuck:
        return Expected("finishes", heard=strict.heard(), forgets=any(map(_forgets, program.ranks)))
    if lenient.stuck == strict.stuck:
        return Expected("deadlocks", strict.stuck)
    return Expected("fails" if lenient.stuck else "either")


def _forgets(ops: tuple[Op, ...]) -> bool:
    waited = {op.key for op in ops if op.kind == "wait"}
    return any(op.key is not None and op.key not in waited for op in ops)


class _Play:
    """Lets every rank go as far as it can. Nothing is random about where that ends, for each receive names its sender.

    Strict: all members of a collective leave together. Lenient: the root of a broadcast or scatter leaves at once, the
    others when the root has come; in a gather or reduce the others leave at once.
    """

    def __init__(self, program: Program, is_strict: bool):
        self.program, self.is_strict = program, is_strict
        threads = [(rank, in_thread) for rank in range(len(program.ranks)) for in_thread in (False, True)]
        self.to_do = {(rank, in_thread): deque(program.places(rank, in_thread)) for rank, in_thread in threads}
        self.issued: set[tuple[int, int]] = set()
        self.partner: dict[tuple[int, int], tuple[int, int]] = {}
        self.open: defaultdict[tuple, deque] = defaultdict(deque)
        self.joined: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self.number: dict[tuple[int, int], int] = {}
        self.count: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.misfit = self.is_refused = False
        while any([self.step(*thread) for thread in threads]):
            pass
        self.stuck: defaultdict[int, list[Op]] = defaultdict(list)
        for (rank, _), places in self.to_do.items():
            if places:
                self.stuck[rank].append(self.waits_for(rank, places[0]))

    def step(self, rank: int, in_thread: bool) -> bool:
        """Takes a thread of a rank one call further, if it can go."""
        places, moved = self.to_do[rank, in_thread], False
        if not places:
            return False
        place = places[0]
        op = self.program.ranks[rank][place]
        if op.peer == rank or (op.layout == "column" and op.length > 1):  # not to oneself; not with gaps in memory
            self.is_refused = True
            return False
        if op.kind != "wait" and (rank, place) not in self.issued:
            self.issue(rank, place, op)
            moved = True
        awaited = self.started(rank, op.key) if op.kind == "wait" else place
        if (op.key is not None and op.kind != "wait") or self.is_over(rank, awaited):
            places.popleft()
            return True
        return moved

    def started(self, rank: int, key: int) -> int:
        return next(n for n, op in enumerate(self.program.ranks[rank]) if op.key == key and op.kind != "wait")

    def waits_for(self, rank: int, place: int) -> Op:
        op = self.program.ranks[rank][place]
        return self.program.ranks[rank][self.started(rank, op.key)] if op.kind == "wait" else op

    def issue(self, rank: int, place: int, op: Op) -> None:
        self.issued.add((rank, place))
        if not op.is_p2p:
            self.join(rank, place, op)
            return
        pair = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
        waiting = self.open[PARTNER[op.kind], pair, op.group, op.tag]
        if not waiting:
            self.open[op.kind, pair, op.group, op.tag].append((rank, place))
            return
        other = waiting.popleft()
        self.partner[rank, place], self.partner[other] = other, (rank, place)
        self.misfit |= self.op(other).length != op.length

    def join(self, rank: int, place: int, op: Op) -> None:
        number = self.count[rank, op.group]
        self.count[rank, op.group] += 1
        self.number[rank, place] = number
        joined = self.joined[op.group, number]
        joined[rank] = place
        self.misfit |= any(not self.fit(one, other) for one, other in combinations(joined.items(), 2))

    def fit(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Whether two calls can be parts of one collective."""
        mine, theirs = self.op(one), self.op(other)
        if (mine.kind, mine.root) != (theirs.kind, theirs.root):
            return False
        compared = mine.kind in SAME_LENGTH or mine.root in (one[0], other[0])
        return not compared or (_size(mine), _strides(mine)) == (_size(theirs), _strides(theirs))

    def op(self, where: tuple[int, int]) -> Op:
        return self.program.ranks[where[0]][where[1]]

    def is_over(self, rank: int, place: int) -> bool:
        """Whether a call that was issued is over for this rank."""
        op = self.program.ranks[rank][place]
        if op.is_p2p:
            return (rank, place) in self.partner
        here = set(self.joined[op.group, self.number[rank, place]])
        if self.is_strict or op.kind not in LEAVE_EARLY:
            return here == set(self.program.groups[op.group])
        if op.kind in ("broadcast", "scatter"):
            return op.root in here
        return rank != op.root or here == set(self.program.groups[op.group])

    def heard(self) -> list[list[float]]:
        """What every receive brings: the code of the send that it met."""
        return [
            [code(*self.partner[rank, place]) for place, op in enumerate(ops) if op.kind == "recv"]
            for rank, ops in enumerate(self.program.ranks)
        ]


def _size(op: Op) -> int:
    return op.length * (2 if op.layout in ("rows", "transposed") else 1)


def _strides(op: Op) -> str:
    """How the elements lie, where it matters: a matrix of one row or column lies in a row either way."""
    return op.layout if op.layout == "transposed" and op.length > 1 else ""
