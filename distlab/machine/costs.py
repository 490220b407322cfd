"""What each collective costs by the α–β model: α seconds a message, β = 1/bandwidth seconds a byte.

In every formula p is the number of ranks and n the bytes of the whole array: what an all-reduce, broadcast, reduce or
all-to-all has on each rank, what an all-gather or gather ends with, what a reduce-scatter or scatter starts from.
Adding numbers up is taken to be free (γ = 0). Sources: Thakur & Gropp 2003 and Thakur, Rabenseifner & Gropp 2005,
"Optimization of collective communication operations in MPICH", unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from distlab.machine.hardware import Link, Machine


def ring_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """2(p−1)α + 2(p−1)/p·nβ: a ring reduce-scatter, then a ring all-gather."""
    return reduce_scatter(bytes, ranks, link) + all_gather(bytes, ranks, link)


def tree_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """2⌈lg p⌉(α + nβ): reduce to one rank along a binomial tree, then broadcast; not pipelined."""
    return reduce(bytes, ranks, link) + broadcast(bytes, ranks, link)


def recursive_doubling_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """lg p (α + nβ): everyone swaps all with a partner twice as far each time.

    Where p is not a power of two, the ranks beyond it hand theirs in before and get the sum after: two steps more.
    """
    steps = ranks.bit_length() - 1
    return (steps if 2**steps == ranks else steps + 2) * link.seconds(bytes)


def halving_doubling_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """2 lg p α + 2(p−1)/p·nβ: recursive halving, then doubling (Rabenseifner), for p a power of two."""
    return link.seconds(2 * (ranks - 1) / ranks * bytes, messages=2 * math.log2(ranks))


def star_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """2(p−1)(α + nβ): one rank receives from every other in turn, adds up, and sends to every other."""
    return 2 * (ranks - 1) * link.seconds(bytes)


def hierarchical_all_reduce(bytes: float, inside: Sequence[int], links: tuple[Link, Link]) -> float:
    """Reduce-scatter inside each node, ring all-reduce between nodes of what each rank then has, all-gather inside.

    ``inside`` is the number of ranks on each node, ``links`` the one inside and the one between nodes. With g ranks
    on each of m nodes: 2(g−1)α₁ + 2(g−1)/g·nβ₁ + 2(m−1)α₂ + 2(m−1)/m·(n/g)β₂. Where nodes differ, the fullest sets
    the time inside and the emptiest, whose ranks hold the largest shares, that between. Source: computed from the
    ring's formula.
    """
    within = ring_all_reduce(bytes, max(inside), links[0])
    return within + ring_all_reduce(bytes / min(inside), len(inside), links[1])


def reduce_scatter(bytes: float, ranks: int, link: Link) -> float:
    """(p−1)α + (p−1)/p·nβ, as a ring."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=ranks - 1)


def all_gather(bytes: float, ranks: int, link: Link) -> float:
    """(p−1)α + (p−1)/p·nβ, as a ring."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=ranks - 1)


def broadcast(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉(α + nβ), along a binomial tree."""
    return _doublings(ranks) * link.seconds(bytes)


def reduce(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉(α + nβ), along a binomial tree."""
    return _doublings(ranks) * link.seconds(bytes)


def gather(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉α + (p−1)/p·nβ, along a binomial tree."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=_doublings(ranks))


def scatter(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉α + (p−1)/p·nβ, along a binomial tree."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=_doublings(ranks))


def all_to_all(bytes: float, ranks: int, link: Link) -> float:
    """(p−1)α + (p−1)/p·nβ, pair by pair."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=ranks - 1)


def uneven_all_to_all(parts: Sequence[Sequence[float]], link: Link) -> float:
    """(p−1)α + bβ, where ``parts[i][j]`` bytes go from member i to member j.

    b is what the busiest member sends to others or receives from them, whichever is more. Equal to
    :func:`all_to_all` where all parts are equal. Source: computed, a lower bound of the pairwise exchange.
    """
    others = [sum(row) - row[i] for i, row in enumerate(parts)]
    others += [sum(column) - column[i] for i, column in enumerate(zip(*parts))]
    return link.seconds(max(others), messages=len(parts) - 1)


def barrier(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉α: dissemination (Hensgen, Finkel & Manber 1988; from memory)."""
    return _doublings(ranks) * link.latency_s


FLAT: dict[str, Callable[[float, int, Link], float]] = {
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "barrier": barrier,
}
ALL_REDUCE: dict[str, Callable[[float, int, Link], float]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "hierarchical": ring_all_reduce,
}


def seconds(kind: str, bytes: float, members: Sequence[int], machine: Machine) -> float:
    """Seconds of a collective of ``bytes`` bytes, or of one send, among ranks ``members`` of a machine.

    On one node its inner link counts. On several, all steps are charged at the link between nodes, for every step
    waits for the slowest; only a hierarchical all-reduce uses each link where it is. Raises ValueError for a kind that
    is not known.
    """
    if kind in ("send", "recv"):
        return machine.link(members).seconds(bytes)
    if kind == "all_reduce" and is_hierarchical(kind, members, machine):
        inside = Counter(machine.node(rank) for rank in members).values()
        return hierarchical_all_reduce(bytes, list(inside), (machine.inside, machine.between))
    formula = ALL_REDUCE[machine.all_reduce] if kind == "all_reduce" else FLAT.get(kind)
    if formula is None:
        raise ValueError(f"no cost is known for {kind!r}; known are all_reduce, send, recv, {', '.join(FLAT)}")
    return formula(bytes, len(members), machine.link(members))


def is_hierarchical(kind: str, members: Sequence[int], machine: Machine) -> bool:
    """Whether a collective works inside the nodes and between them, each at its own link."""
    if kind != "all_reduce" or machine.all_reduce != "hierarchical":
        return False
    return 1 < len({machine.node(rank) for rank in members}) < len(members)


def _doublings(ranks: int) -> int:
    return (ranks - 1).bit_length()
