"""What collectives cost over several nodes that use both of their links: those inside nodes and those between them.

In every formula g is the number of ranks on a node, m the number of nodes, n the bytes of the whole array, and α₁β₁,
α₂β₂ the links inside and between. Where nodes differ, the fullest sets the time inside and the emptiest, whose ranks
hold the largest shares, that between. Source: computed from the ring's formula in :mod:`distlab.machine.costs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from distlab.machine.hardware import Link

Links = tuple[Link, Link]  # inside a node, between nodes


def all_gather(bytes: float, inside: Sequence[int], links: Links, overlapped: bool = False) -> float:
    """A ring between nodes for each place on a node, all at once; then a ring inside each node.

    (m−1)α₂ + (m−1)/m·(n/g)β₂ + (g−1)α₁ + (g−1)/g·nβ₁. ``overlapped`` sends in chunks, so that both links work at the
    same time: of the two terms in bytes only the larger counts. ``inside`` is the number of ranks on each node.
    """
    g, m = max(inside), len(inside)
    latency = (g - 1) * links[0].latency_s + (m - 1) * links[1].latency_s
    within = (g - 1) / g * bytes / links[0].bytes_per_s
    across = (m - 1) / m * bytes / min(inside) / links[1].bytes_per_s
    return latency + (max(within, across) if overlapped else within + across)


def reduce_scatter(bytes: float, inside: Sequence[int], links: Links, overlapped: bool = False) -> float:
    """Inside each node first, then between nodes what each rank then has: :func:`all_gather` backwards."""
    return all_gather(bytes, inside, links, overlapped)


def all_reduce(bytes: float, inside: Sequence[int], links: Links, overlapped: bool = False) -> float:
    """A :func:`reduce_scatter`, then an :func:`all_gather`."""
    return reduce_scatter(bytes, inside, links, overlapped) + all_gather(bytes, inside, links, overlapped)


def even_all_to_all(bytes: float, inside: Sequence[int], links: Links) -> float:
    """:func:`all_to_all` where every part is n/p bytes: max((g−1)(α₁ + n/p·β₁), (p−g)(α₂ + n/p·β₂))."""
    p = sum(inside)
    partners = max(inside) - 1, p - min(inside)
    return max(link.seconds(count * bytes / p, messages=count) for link, count in zip(links, partners))


def all_to_all(parts: Sequence[Sequence[float]], nodes: Sequence[int], links: Links) -> float:
    """Each byte at the link that it uses, both links at once: the slower of the two sets the time.

    ``parts[i][j]`` bytes go from member i, which is on node ``nodes[i]``, to member j. Of a link: α for each partner
    over it of the rank that has the most of them, and β for each byte of what the busiest rank sends or receives over
    it. What a rank keeps uses none.
    """
    return max(_exchange(parts, nodes, link, is_inside) for link, is_inside in zip(links, (True, False)))


def _exchange(parts: Sequence[Sequence[float]], nodes: Sequence[int], link: Link, is_inside: bool) -> float:
    """Seconds of the part of an all-to-all that stays inside nodes, or of the part that does not."""
    members = range(len(nodes))
    partners = [[j for j in members if j != i and (nodes[i] == nodes[j]) is is_inside] for i in members]
    sent = [sum(parts[i][j] for j in partners[i]) for i in members]
    received = [sum(parts[j][i] for j in partners[i]) for i in members]
    return link.seconds(max(*sent, *received, 0.0), messages=max(map(len, partners)))
