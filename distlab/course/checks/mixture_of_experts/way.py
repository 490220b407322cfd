"""Where each row goes and how it comes home, worked out for all ranks at once."""

from __future__ import annotations

from typing import NamedTuple

import torch

from distlab.course.checks.mixture_of_experts.all_to_all_autograd import pieces

# In the first case each rank sends as many rows as it receives. By rank, how many rows it has for each expert.
CASES = (
    [[1, 3, 1, 1], [1, 1, 3, 1]],
    [[1, 2, 1, 1], [2, 1, 2, 2]],
    [[2, 1, 0], [1, 1, 3], [0, 2, 1]],
    [[2, 0, 1]],
    [[0, 2, 0, 0, 1, 1, 0, 1], [1, 1, 0, 0, 2, 2, 1, 0], [0] * 8, [2, 2, 0, 0, 1, 3, 0, 1]],
    [[3, 0, 0, 0], [2, 0, 0, 0]],
)


class Way(NamedTuple):
    """Of one rank: rows to each rank, rows from each rank, and the order that groups what arrived by expert."""

    sends: list[int]
    receives: list[int]
    order: torch.Tensor


def in_words(counts: list[list[int]]) -> str:
    ranks, num_experts = len(counts), len(counts[0])
    return f"with {ranks} rank{'s' if ranks > 1 else ''}, {num_experts} experts and counts {counts}"


def sizes(counts: list[list[int]]) -> list[list[int]]:
    """``sizes[i][j]``: rows from rank i to rank j."""
    per_rank = len(counts[0]) // len(counts)
    return [[sum(row[r * per_rank : (r + 1) * per_rank]) for r in range(len(counts))] for row in counts]


def local_counts(counts: list[list[int]]) -> list[list[list[int]]]:
    """By rank and source: rows for each of the rank's experts."""
    per_rank = len(counts[0]) // len(counts)
    return [[row[r * per_rank : (r + 1) * per_rank] for row in counts] for r in range(len(counts))]


def ways(counts: list[list[int]]) -> list[Way]:
    """Every rank's way."""
    sent, found = sizes(counts), []
    for rank, came in enumerate(local_counts(counts)):
        experts = [e for row in came for e, n in enumerate(row) for _ in range(n)]
        order = sorted(range(len(experts)), key=lambda i: experts[i])
        order = torch.tensor(order, dtype=torch.int64)
        found.append(Way(sent[rank], [row[rank] for row in sent], order))
    return found


def dispatched(x: list[torch.Tensor], counts: list[list[int]]) -> list[torch.Tensor]:
    """Every rank's rows, by expert and then by source."""
    return [y[way.order] for y, way in zip(pieces(x, sizes(counts)), ways(counts))]


def returned(y: list[torch.Tensor], counts: list[list[int]]) -> list[torch.Tensor]:
    """The way home of :func:`dispatched`."""
    back = [list(column) for column in zip(*sizes(counts))]
    return pieces([one[way.order.argsort()] for one, way in zip(y, ways(counts))], back)
