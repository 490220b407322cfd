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
    finishes, perhaps). ``stuck`` has what each stuck rank waits for, ``heard`` what each receive brings.
    """

    fate: str
    stuck: dict[int, Op] = field(default_factory=dict)
    heard: list[list[float]] = field(default_factory=list)


def expect(program: Program) -> Expected:
    """The fate of a program: what strict and lenient backends agree on."""
    strict, lenient = _Play(program, is_strict=True), _Play(program, is_strict=False)
    if strict.misfit or strict.is_refused:
        both = strict.misfit and strict.is_refused
        return Expected("fails" if both else "does not fit" if strict.misfit else "is refused")
    if lenient.misfit or lenient.is_refused:
        return Expected("fails" if strict.stuck == lenient.stuck else "either")
    if not strict.stuck and not lenient.stuck:
        return Expected("finishes", heard=strict.heard())
    if lenient.stuck == strict.stuck:
        return Expected("deadlocks", strict.stuck)
    return Expected("fails" if lenient.stuck else "either")


class _Play:
    """Lets every rank go as far as it can. Nothing is random about where that ends, for each receive names its sender.

    Strict: all members of a collective leave together. Lenient: the root of a broadcast or scatter leaves at once, the
    others when the root has come; in a gather or reduce the others leave at once.
    """

    def __init__(self, program: Program, is_strict: bool):
        self.program, self.is_strict = program, is_strict
        self.place = [0] * len(program.ranks)
        self.issued: set[tuple[int, int]] = set()
        self.partner: dict[tuple[int, int], tuple[int, int]] = {}
        self.open: defaultdict[tuple, deque] = defaultdict(deque)
        self.joined: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self.number: dict[tuple[int, int], int] = {}
        self.count: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.misfit = self.is_refused = False
        while any([self.step(rank) for rank in range(len(program.ranks))]):
            pass
        self.stuck = {
            rank: self.waits_for(rank) for rank, ops in enumerate(program.ranks) if self.place[rank] < len(ops)
        }

    def step(self, rank: int) -> bool:
        """Takes a rank one call further, if it can go."""
        ops, place = self.program.ranks[rank], self.place[rank]
        if place == len(ops):
            return False
        op, moved = ops[place], False
        if op.peer == rank:  # nobody sends to oneself, or receives from oneself
            self.is_refused = True
            return False
        if op.kind != "wait" and (rank, place) not in self.issued:
            self.issue(rank, place, op)
            moved = True
        awaited = self.started(rank, op.key) if op.kind == "wait" else place
        if (op.key is not None and op.kind != "wait") or self.is_over(rank, awaited):
            self.place[rank] += 1
            return True
        return moved

    def started(self, rank: int, key: int) -> int:
        return next(n for n, op in enumerate(self.program.ranks[rank]) if op.key == key and op.kind != "wait")

    def waits_for(self, rank: int) -> Op:
        op = self.program.ranks[rank][self.place[rank]]
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
        return not compared or mine.length == theirs.length

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
