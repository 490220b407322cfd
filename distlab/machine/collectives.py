"""Which algorithm a machine takes for a collective, what that costs, and which links it takes.

A machine names one algorithm for all its collectives. An algorithm that has no form of a collective leaves it to the
plain one (``PLAIN``), at the slowest link that the members need: a ring for the bytes of all, a binomial tree for those
of one. An all-to-all has no choice: each byte takes the link it must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from distlab.machine import costs, levels
from distlab.machine.hardware import Link, Machine

Formula = Callable[[float, int, Link], float]

PLAIN: dict[str, Formula] = {
    "all_reduce": costs.ring_all_reduce,
    "reduce_scatter": costs.reduce_scatter,
    "all_gather": costs.all_gather,
    "broadcast": costs.broadcast,
    "reduce": costs.reduce,
    "gather": costs.gather,
    "scatter": costs.scatter,
    "all_to_all": costs.all_to_all,
    "barrier": costs.barrier,
}
# What each algorithm does otherwise than PLAIN.
ALGORITHMS: dict[str, dict[str, Formula]] = {
    "ring": {},
    "two_way_ring": {
        "all_reduce": costs.two_way_ring_all_reduce,
        "reduce_scatter": costs.two_way_ring_reduce_scatter,
        "all_gather": costs.two_way_ring_all_gather,
    },
    "tree": {"all_reduce": costs.tree_all_reduce},
    "recursive_doubling": {
        "all_reduce": costs.recursive_doubling_all_reduce,
        "reduce_scatter": costs.halving_reduce_scatter,
        "all_gather": costs.doubling_all_gather,
    },
    "halving_doubling": {
        "all_reduce": costs.halving_doubling_all_reduce,
        "reduce_scatter": costs.halving_reduce_scatter,
        "all_gather": costs.doubling_all_gather,
    },
    "hierarchical": {},  # of several nodes: BY_LEVEL
}
BY_LEVEL = {
    "all_reduce": levels.all_reduce,
    "reduce_scatter": levels.reduce_scatter,
    "all_gather": levels.all_gather,
}
# A two-way ring needs wires that only a torus has: "auto" never takes it.
_FOR_AUTO = ("ring", "tree", "recursive_doubling", "halving_doubling", "hierarchical")


def seconds(kind: str, bytes: float, members: Sequence[int], machine: Machine) -> float:
    """Seconds of a collective of ``bytes`` bytes, or of one send, among ranks ``members`` of a machine.

    On one node its inner link counts. On several, all steps are charged at the link between nodes, for every step
    waits for the slowest; but a hierarchical machine's all-reduce, reduce-scatter and all-gather use each link where it
    is (:mod:`distlab.machine.levels`), and so does every machine's all-to-all. Raises ValueError for a kind that is not
    known.
    """
    if kind in ("send", "recv"):
        return machine.link(members).seconds(bytes)
    if kind not in PLAIN:
        raise ValueError(f"no cost is known for {kind!r}; known are send, recv, {', '.join(PLAIN)}")
    if kind == "all_to_all":
        return levels.even_all_to_all(bytes, _inside(members, machine), (machine.inside, machine.between))
    return _seconds(kind, bytes, members, machine, algorithm_of(kind, bytes, members, machine))


def all_to_all(parts: Sequence[Sequence[float]], members: Sequence[int], machine: Machine) -> float:
    """Seconds of an all-to-all in which ``parts[i][j]`` bytes go from member i to member j."""
    nodes = [machine.node(rank) for rank in members]
    return levels.all_to_all(parts, nodes, (machine.inside, machine.between))


def algorithm_of(kind: str, bytes: float, members: Sequence[int], machine: Machine) -> str:
    """The algorithm that a machine takes for a collective: its own, or where that is "auto" the cheapest that is known.

    Rabenseifner's halving and doubling is known for powers of two only, hierarchies for several nodes of which one has
    several members: elsewhere a machine takes a ring instead.
    """
    if machine.collectives == "auto":
        known = [name for name in _FOR_AUTO if _can(name, kind, members, machine)]
        return min(known, key=lambda name: _seconds(kind, bytes, members, machine, name))
    return machine.collectives if _can(machine.collectives, kind, members, machine) else "ring"


def uses_both_links(kind: str, bytes: float, members: Sequence[int], machine: Machine) -> bool:
    """Whether a collective works inside the nodes and between them, each at its own link."""
    nodes = {machine.node(rank) for rank in members}
    if len(nodes) < 2 or kind not in ("all_to_all", *BY_LEVEL):
        return False
    if kind == "all_to_all":
        return len(nodes) < len(members)
    return algorithm_of(kind, bytes, members, machine) == "hierarchical"


def _can(algorithm: str, kind: str, members: Sequence[int], machine: Machine) -> bool:
    """Whether an algorithm has a form of its own of a collective among these members."""
    if algorithm == "hierarchical":
        return kind in BY_LEVEL and 1 < len({machine.node(rank) for rank in members}) < len(members)
    if algorithm == "halving_doubling" and kind == "all_reduce":
        return len(members).bit_count() == 1
    return algorithm == "ring" or kind in ALGORITHMS[algorithm]


def _inside(members: Sequence[int], machine: Machine) -> list[int]:
    """How many members are on each node that has any."""
    return list(Counter(machine.node(rank) for rank in members).values())


def _seconds(kind: str, bytes: float, members: Sequence[int], machine: Machine, algorithm: str) -> float:
    if algorithm == "hierarchical":
        return BY_LEVEL[kind](
            bytes, _inside(members, machine), (machine.inside, machine.between), machine.overlaps_levels
        )
    formula = ALGORITHMS[algorithm].get(kind, PLAIN[kind])
    return formula(bytes, len(members), machine.link(members))
