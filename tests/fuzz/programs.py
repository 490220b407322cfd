"""Random programs of sends, receives and collectives on 2 to 4 ranks: right ones, and right ones with a slip."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

LEAVE_EARLY = ("broadcast", "scatter", "gather", "reduce")
ALL_STAY = ("all_reduce", "all_gather", "barrier", "all_to_all", "reduce_scatter")
ROOTED = LEAVE_EARLY
AS_THEY_LIE = ("all_reduce", "broadcast", "reduce")  # of these a backend takes the elements as they lie in memory
PARTNER = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Op:
    """One call on one rank. ``key`` names one that is only started here, and waited for by the "wait" of that key.

    ``layout`` is how the tensor lies: "" for a vector of ``length``, "rows" and "transposed" for a matrix of ``length``
    × 2, "column" for a column of a matrix.
    """

    kind: str
    group: int = 0
    peer: int | None = None
    root: int | None = None
    tag: int = 0
    length: int = 4
    key: int | None = None
    layout: str = ""

    @property
    def is_p2p(self) -> bool:
        return self.kind in PARTNER


@dataclass(frozen=True)
class Program:
    """What each rank calls, in order; ``groups[0]`` is the world, and the others are made first, on all ranks.

    What is called on the groups ``in_thread`` is called by a second thread of each rank, in its own order.
    """

    ranks: tuple[tuple[Op, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    slip: str = ""
    in_thread: frozenset[int] = frozenset()

    def places(self, rank: int, in_thread: bool) -> list[int]:
        """The numbers of a rank's calls that its main thread makes, or those of the second."""
        ops = self.ranks[rank]
        groups = {op.key: op.group for op in ops if op.kind != "wait"}
        group = [groups[op.key] if op.kind == "wait" else op.group for op in ops]
        return [place for place in range(len(ops)) if (group[place] in self.in_thread) == in_thread]

    def __str__(self) -> str:
        lines = [f"groups {self.groups}, {self.slip or 'right'}, in a second thread: {sorted(self.in_thread)}"]
        lines += [f"rank {rank}: {', '.join(map(_words, ops))}" for rank, ops in enumerate(self.ranks)]
        return "\n".join(lines)


def _words(op: Op) -> str:
    fields = {"group": 0, "peer": None, "root": None, "tag": 0, "length": 4, "key": None, "layout": ""}
    said = [f"{name}={getattr(op, name)}" for name, default in fields.items() if getattr(op, name) != default]
    return f"{op.kind}({', '.join(said)})"


def right(dice: random.Random) -> Program:
    """A program that must finish: all ranks follow one order of messages, each leaving out what it has no part in."""
    world = tuple(range(dice.randint(2, 4)))
    groups = [world]
    for _ in range(dice.randint(0, 2)):
        groups.append(tuple(sorted(dice.sample(world, dice.randint(2, len(world))))))
    ranks: list[list[Op]] = [[] for _ in world]
    for number in range(dice.randint(3, 9)):
        group = dice.randrange(len(groups))
        if dice.random() < 0.55:
            _message(dice, ranks, groups, group, number)
        else:
            _collective(dice, ranks, groups, group, number)
    of_threads = frozenset(g for g in range(1, len(groups)) if dice.random() < 0.5)
    return Program(tuple(tuple(_with_waits(dice, ops)) for ops in ranks), tuple(groups), in_thread=of_threads)


def _message(
    dice: random.Random, ranks: list[list[Op]], groups: list[tuple[int, ...]], group: int, number: int
) -> None:
    sender, receiver = dice.sample(groups[group], 2)
    common = {"group": group, "tag": dice.choice((0, 0, 0, 5)), "length": dice.choice((1, 4, 4, 5000))}
    for rank, peer, kind in ((sender, receiver, "send"), (receiver, sender, "recv")):
        key = number if dice.random() < 0.4 else None
        ranks[rank].append(Op(kind, peer=peer, key=key, **common))


def _collective(
    dice: random.Random, ranks: list[list[Op]], groups: list[tuple[int, ...]], group: int, number: int
) -> None:
    kind = dice.choice(LEAVE_EARLY + ALL_STAY)
    root = dice.choice(groups[group]) if kind in ROOTED else None
    key = number if kind != "barrier" and dice.random() < 0.2 else None
    layout = dice.choice(("", "", "rows", "transposed")) if kind in AS_THEY_LIE else ""
    op = Op(kind, group=group, root=root, length=dice.choice((1, 4, 3000)), key=key, layout=layout)
    for rank in groups[group]:
        ranks[rank].append(op)


def _with_waits(dice: random.Random, ops: list[Op]) -> list[Op]:
    """Puts the wait for each started operation somewhere after it."""
    ops = list(ops)
    for op in [op for op in ops if op.key is not None]:
        ops.insert(dice.randint(ops.index(op) + 1, len(ops)), Op("wait", key=op.key))
    return ops


def with_slip(dice: random.Random) -> Program:
    """A right program in which one rank makes one mistake; some mistakes do no harm."""
    program = right(dice)
    ranks = [list(ops) for ops in program.ranks]
    mine = dice.choice([ops for ops in ranks if ops])
    slip = dice.choice(
        (
            _swap,
            _leave_out,
            _return_early,
            _forget_to_wait,
            _other_tag,
            _other_length,
            _other_kind,
            _other_root,
            _other_peer,
            _other_layout,
        )
    )
    said = slip(dice, mine, program)
    return replace(program, ranks=tuple(tuple(ops) for ops in ranks), slip=said)


def _swap(dice: random.Random, ops: list[Op], program: Program) -> str:
    if len(ops) > 1:
        first = dice.randrange(len(ops) - 1)
        if ops[first + 1] != Op("wait", key=ops[first].key):
            ops[first], ops[first + 1] = ops[first + 1], ops[first]
    return "two calls change places"


def _leave_out(dice: random.Random, ops: list[Op], program: Program) -> str:
    gone = dice.choice(ops)
    if gone.kind != "wait":
        ops[:] = [op for op in ops if op is not gone and not (op.kind == "wait" and op.key == gone.key)]
    return "a call is left out"


def _return_early(dice: random.Random, ops: list[Op], program: Program) -> str:
    kept = ops[: dice.randrange(len(ops))]
    waited = {op.key for op in kept if op.kind == "wait"}
    ops[:] = kept + [Op("wait", key=op.key) for op in kept if op.kind != "wait" and op.key not in waited | {None}]
    return "a rank returns early"


def _forget_to_wait(dice: random.Random, ops: list[Op], program: Program) -> str:
    """Only of a collective: a send or receive may be lost with its Work."""
    started = [op.key for op in ops if op.key is not None and op.kind != "wait" and not op.is_p2p]
    if started:
        key = dice.choice(started)
        ops[:] = [op for op in ops if not (op.kind == "wait" and op.key == key)]
    return "a wait is forgotten"


def _change(kind: str):
    """A slip that replaces one call, of a sort that has what is changed."""

    def decorate(change):
        def slip(dice: random.Random, ops: list[Op], program: Program) -> str:
            sort = [
                place
                for place, op in enumerate(ops)
                if op.kind != "wait" and (kind == "any" or op.is_p2p == (kind == "p2p"))
            ]
            if sort:
                place = dice.choice(sort)
                ops[place] = change(dice, ops[place], program)
            return change.__name__.strip("_").replace("_", " ")

        return slip

    return decorate


@_change("p2p")
def _other_tag(dice: random.Random, op: Op, program: Program) -> Op:
    return replace(op, tag=op.tag + 1)


@_change("any")
def _other_length(dice: random.Random, op: Op, program: Program) -> Op:
    return replace(op, length=op.length + 2)


@_change("collective")
def _other_kind(dice: random.Random, op: Op, program: Program) -> Op:
    kind = dice.choice([kind for kind in LEAVE_EARLY + ALL_STAY if kind != op.kind])
    layout = op.layout if kind in AS_THEY_LIE else ""
    return replace(op, kind=kind, root=program.groups[op.group][0] if kind in ROOTED else None, layout=layout)


@_change("collective")
def _other_root(dice: random.Random, op: Op, program: Program) -> Op:
    members = program.groups[op.group]
    return replace(op, root=dice.choice(members)) if op.root is not None else op


@_change("p2p")
def _other_peer(dice: random.Random, op: Op, program: Program) -> Op:
    return replace(op, peer=dice.choice(program.groups[op.group]))


@_change("collective")
def _other_layout(dice: random.Random, op: Op, program: Program) -> Op:
    if op.kind not in AS_THEY_LIE:
        return op
    others = {"": "column", "rows": "transposed", "transposed": "rows"}
    return replace(op, layout=others[op.layout])


def play(program: Program) -> list[float]:
    """Runs this rank's part; returns the first number of every tensor received, in order of the calls."""
    rank = dist.get_rank()
    groups = [dist.new_group(members) if number else None for number, members in enumerate(program.groups)]
    heard, raised = {}, []

    def second():
        try:
            heard.update(_play(program, rank, program.places(rank, True), groups))
        except Exception as error:  # whatever it is, the main thread raises it
            raised.append(error)

    thread = threading.Thread(target=second)
    if program.in_thread:
        thread.start()
    heard.update(_play(program, rank, program.places(rank, False), groups))
    if program.in_thread:
        thread.join()
    if raised:
        raise raised[0]
    return [heard[place].flatten()[0].item() for place in sorted(heard)]


def _play(program: Program, rank: int, places: list[int], groups: list) -> dict[int, torch.Tensor]:
    """Makes the calls of one thread; returns what it received, by the calls' numbers."""
    under_way, heard = {}, {}
    for place in places:
        op = program.ranks[rank][place]
        if op.kind == "wait":
            under_way.pop(op.key).wait()
            continue
        x = _tensor(op, code(rank, place))
        work = _start(op, x, groups[op.group], len(program.groups[op.group]), op.root == rank)
        if op.key is not None:
            under_way[op.key] = work
        elif work is not None:
            work.wait()
        if op.kind == "recv":
            heard[place] = x
    return heard


def _tensor(op: Op, value: float) -> torch.Tensor:
    layouts = {
        "": lambda: torch.full((op.length,), value),
        "rows": lambda: torch.full((op.length, 2), value),
        "transposed": lambda: torch.full((2, op.length), value).t(),
        "column": lambda: torch.full((op.length, 3), value)[:, 1],
    }
    return layouts[op.layout]()


def code(rank: int, place: int) -> float:
    """A number that says whose call it is."""
    return 1000.0 * (rank + 1) + place


def _start(op: Op, x: torch.Tensor, group, size: int, is_root: bool) -> dist.Work | None:
    is_async = op.key is not None
    if op.kind == "send":
        return dist.isend(x, op.peer, group, op.tag) if is_async else dist.send(x, op.peer, group, op.tag)
    if op.kind == "recv":
        if is_async:
            return dist.irecv(x, op.peer, group, op.tag)
        dist.recv(x, op.peer, group, op.tag)
        return None
    parts = [torch.empty_like(x) for _ in range(size)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(x, group=group, async_op=is_async),
        "all_gather": lambda: dist.all_gather(parts, x, group=group, async_op=is_async),
        "barrier": lambda: dist.barrier(group=group),
        "all_to_all": lambda: dist.all_to_all(parts, [x] * size, group=group, async_op=is_async),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts, group=group, async_op=is_async),
        "broadcast": lambda: dist.broadcast(x, op.root, group=group, async_op=is_async),
        "reduce": lambda: dist.reduce(x, op.root, group=group, async_op=is_async),
        "scatter": lambda: dist.scatter(x, parts if is_root else None, op.root, group=group, async_op=is_async),
        "gather": lambda: dist.gather(x, parts if is_root else None, op.root, group=group, async_op=is_async),
    }
    return calls[op.kind]()
