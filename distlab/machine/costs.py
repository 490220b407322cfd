"""What each collective costs by the α–β model: α seconds a message, β = 1/bandwidth seconds a byte.

In every formula p is the number of ranks and n the bytes of the whole array: what an all-reduce, broadcast, reduce or
all-to-all has on each rank, what an all-gather or gather ends with, what a reduce-scatter or scatter starts from.
Adding numbers up is taken to be free (γ = 0). Sources: Thakur & Gropp 2003 and Thakur, Rabenseifner & Gropp 2005,
"Optimization of collective communication operations in MPICH", unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from distlab.machine.hardware import Link


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


def two_way_ring_all_reduce(bytes: float, ranks: int, link: Link) -> float:
    """2⌊p/2⌋α + (p−1)/p·nβ: a ring in both directions at once, half of the bytes in each.

    For a torus (Google's TPUs), where a rank has a wire of its own to either neighbour and ``link`` is one of them, one
    way. Behind a switch the one way already fills what a rank can send. Source: computed; Austin et al., "How to Scale
    Your Model", 2025, chapter "Sharded matrices", has it without (p−1)/p.
    """
    return two_way_ring_reduce_scatter(bytes, ranks, link) + two_way_ring_all_gather(bytes, ranks, link)


def two_way_ring_reduce_scatter(bytes: float, ranks: int, link: Link) -> float:
    """⌊p/2⌋α + (p−1)/p·nβ/2, as :func:`two_way_ring_all_reduce`."""
    return link.seconds((ranks - 1) / ranks * bytes / 2, messages=ranks // 2)


def two_way_ring_all_gather(bytes: float, ranks: int, link: Link) -> float:
    """⌊p/2⌋α + (p−1)/p·nβ/2, as :func:`two_way_ring_all_reduce`."""
    return link.seconds((ranks - 1) / ranks * bytes / 2, messages=ranks // 2)


def reduce_scatter(bytes: float, ranks: int, link: Link) -> float:
    """(p−1)α + (p−1)/p·nβ, as a ring."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=ranks - 1)


def all_gather(bytes: float, ranks: int, link: Link) -> float:
    """(p−1)α + (p−1)/p·nβ, as a ring."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=ranks - 1)


def halving_reduce_scatter(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉α + (p−1)/p·nβ: recursive halving, each time with a partner half as far."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=_doublings(ranks))


def doubling_all_gather(bytes: float, ranks: int, link: Link) -> float:
    """⌈lg p⌉α + (p−1)/p·nβ: recursive doubling, each time with a partner twice as far and twice the bytes."""
    return link.seconds((ranks - 1) / ranks * bytes, messages=_doublings(ranks))


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


def _doublings(ranks: int) -> int:
    return (ranks - 1).bit_length()
