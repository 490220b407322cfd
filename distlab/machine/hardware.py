"""Link and Machine: how fast ranks compute, and how fast bytes travel between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distlab.machine.units import quantity

# How collectives may work; distlab.machine.collectives has what each of them costs.
ALGORITHMS = ("ring", "two_way_ring", "tree", "recursive_doubling", "halving_doubling", "hierarchical", "auto")


def _positive(thing, field: str) -> None:
    if not getattr(thing, field) > 0:
        raise ValueError(f"{field} must be positive, not {getattr(thing, field)!r}")


def _not_negative(thing, field: str) -> None:
    if not 0 <= getattr(thing, field) < math.inf:
        raise ValueError(f"{field} must be zero or more, not {getattr(thing, field)!r}")


@dataclass(frozen=True)
class Link:
    """What joins two ranks: ``latency_s`` seconds (α) a message, and ``bytes_per_s`` (1/β) each way at once."""

    latency_s: float
    bytes_per_s: float
    name: str = ""

    def __post_init__(self):
        _not_negative(self, "latency_s")
        _positive(self, "bytes_per_s")

    def seconds(self, bytes: float, messages: float = 1) -> float:
        """Seconds that ``messages`` messages of ``bytes`` bytes in all take, one after the other: α–β."""
        return messages * self.latency_s + bytes / self.bytes_per_s

    @property
    def is_free(self) -> bool:
        """Whether messages take no time."""
        return self.bytes_per_s == math.inf and not self.latency_s

    def __str__(self) -> str:
        if self.is_free:
            return "free links"
        words = f"{quantity(self.bytes_per_s, 'B/s')} + {quantity(self.latency_s, 's')}"
        return f"{self.name} {words}" if self.name else words


FREE_LINK = Link(0.0, math.inf, "free")


@dataclass(frozen=True)
class Machine:
    """A cluster of equal nodes, each of ``ranks_per_node`` ranks with one device and one port a rank.

    ``peak_flops`` is what the data sheet says, ``achieved_flops`` what training reaches; work is charged at the
    second. ``memory_bytes_per_s`` is for reading and writing what an operator works on, ``operator_overhead_s`` for
    starting it. Ranks 0 to ``ranks_per_node`` − 1 share node 0, and so on: ``inside`` joins ranks of a node,
    ``between`` those of different nodes; both are what the data sheet says, and ``reached_inside``,
    ``reached_between`` what collectives were measured to reach of it, where somebody has.

    ``collectives`` is the algorithm, one of ALGORITHMS; "auto" takes the cheapest for each size. A hierarchical one
    works inside nodes and between them, one after the other, or with ``overlaps_levels`` both at the same time, in
    chunks. ``source`` says where the numbers are from.

    Raises ValueError naming the field that is wrong.
    """

    name: str
    peak_flops: float
    achieved_flops: float
    memory_bytes_per_s: float
    operator_overhead_s: float
    ranks_per_node: int
    inside: Link
    between: Link
    collectives: str = "ring"
    source: str = ""
    overlaps_levels: bool = False
    reached_inside: Link | None = None
    reached_between: Link | None = None

    def __post_init__(self):
        for field in ("peak_flops", "achieved_flops", "memory_bytes_per_s"):
            _positive(self, field)
        _not_negative(self, "operator_overhead_s")
        if self.achieved_flops > self.peak_flops:
            raise ValueError(f"achieved_flops ({self.achieved_flops:g}) is above peak_flops ({self.peak_flops:g})")
        if isinstance(self.ranks_per_node, bool) or not isinstance(self.ranks_per_node, int) or self.ranks_per_node < 1:
            raise ValueError(f"ranks_per_node must be a whole number of at least 1, not {self.ranks_per_node!r}")
        if self.collectives not in ALGORITHMS:
            raise ValueError(f"collectives must be one of {', '.join(ALGORITHMS)}, not {self.collectives!r}")

    def node(self, rank: int) -> int:
        """The node that a rank is on."""
        return rank // self.ranks_per_node

    def link(self, members: Sequence[int]) -> Link:
        """The slowest link that ranks need to reach one another: ``between`` if they are on several nodes."""
        return self.inside if len({self.node(rank) for rank in members}) < 2 else self.between

    def with_free_links(self) -> Machine:
        """The same machine with links that cost nothing."""
        return replace(self, inside=FREE_LINK, between=FREE_LINK)

    def flops_only(self) -> Machine:
        """The same machine, charging FLOPs alone for work: no memory traffic, no overhead. Links stay."""
        return replace(self, memory_bytes_per_s=math.inf, operator_overhead_s=0.0)

    def reached(self) -> Machine:
        """The same machine with links as fast as collectives were measured to be on them, which is below line rate.

        Raises ValueError if nobody is known to have measured it.
        """
        if self.reached_inside is None and self.reached_between is None:
            raise ValueError(f"nobody is known to have measured the links of {self.name}; give replace() your own")
        inside, between = self.reached_inside or self.inside, self.reached_between or self.between
        return replace(self, name=f"{self.name} as measured", inside=inside, between=between)

    def describe(self, ranks: int | None = None) -> str:
        """The machine in a line, for titles; for ``ranks`` ranks, links between nodes only if they need them."""
        achieved, peak = quantity(self.achieved_flops, "FLOP/s"), quantity(self.peak_flops, "FLOP/s")
        words = [achieved if achieved == peak else f"{achieved} achieved of {peak}"]
        if self.memory_bytes_per_s != math.inf:
            words.append(f"memory {quantity(self.memory_bytes_per_s, 'B/s')}")
        if self.operator_overhead_s:
            words.append(f"{quantity(self.operator_overhead_s, 's')} an operator")
        words += self._describe_links(ranks)
        words += self._describe_free()
        words.append(self._describe_collectives(spans_nodes=ranks is None or ranks > self.ranks_per_node))
        return f"{self.name} ({', '.join(words)})"

    def _describe_links(self, ranks: int | None) -> list[str]:
        if self.inside.is_free and self.between.is_free:
            return []
        if self.inside == self.between or ranks is not None and ranks <= self.ranks_per_node:
            return [str(self.inside)]
        if self.ranks_per_node == 1:
            return [str(self.between)]
        return [f"{self.inside} inside a node of {self.ranks_per_node}, {self.between} between nodes"]

    def _describe_free(self) -> list[str]:
        """What takes no time, in a word or several."""
        free = {
            "memory": self.memory_bytes_per_s == math.inf,
            "operators": not self.operator_overhead_s,
            "links": self.inside.is_free and self.between.is_free,
        }
        *first, last = [name for name, is_free in free.items() if is_free] or [""]
        listed = f"{', '.join(first)} and {last}" if first else last
        return [f"{listed} free"] if last else []

    def _describe_collectives(self, spans_nodes: bool) -> str:
        words = "the cheapest" if self.collectives == "auto" else self.collectives.replace("_", " ")
        has_levels = self.collectives in ("hierarchical", "auto") and self.ranks_per_node > 1 and spans_nodes
        levels = f", levels {'overlapped' if self.overlaps_levels else 'added'}" if has_levels else ""
        return f"{words} collectives{levels}"
