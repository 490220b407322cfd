"""Where each row goes and how it comes home, worked out for all ranks at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from distlab.course.kit.case import Job

Counts = list[list[int]]
WIDTH = 3


class Way(NamedTuple):
    """Of one rank: rows to each rank, rows from each rank, and the order that groups what arrived by expert."""

    sends: list[int]
    receives: list[int]
    order: torch.Tensor


def pieces(tensors: Sequence[torch.Tensor], sizes: Counts) -> list[torch.Tensor]:
    """By rank, what it receives if ``sizes[i][j]`` rows of ``tensors[i]`` go from i to j."""
    cut = [tensor.split(row) for tensor, row in zip(tensors, sizes)]
    return [torch.cat([row[rank] for row in cut]) for rank in range(len(sizes))]


def local_counts(counts: Counts) -> list[Counts]:
    """By rank and source: rows for each of the rank's experts, of ``counts``, each rank's for all experts."""
    per_rank = len(counts[0]) // len(counts)
    return [[row[r * per_rank : (r + 1) * per_rank] for row in counts] for r in range(len(counts))]


def sizes(counts: Counts) -> Counts:
    """``sizes[i][j]``: rows from rank i to rank j."""
    return [list(map(sum, column)) for column in zip(*local_counts(counts))]


def back(sent: Counts) -> Counts:
    """The sizes of the way home."""
    return [list(column) for column in zip(*sent)]


def ways(counts: Counts) -> list[Way]:
    """Every rank's way."""
    sent, found = sizes(counts), []
    for rank, came in enumerate(local_counts(counts)):
        experts = [e for row in came for e, n in enumerate(row) for _ in range(n)]
        order = torch.tensor(sorted(range(len(experts)), key=experts.__getitem__), dtype=torch.int64)
        found.append(Way(sent[rank], back(sent)[rank], order))
    return found


def dispatched(x: Sequence[torch.Tensor], counts: Counts) -> list[torch.Tensor]:
    """Every rank's rows, by expert and then by source."""
    return [y[way.order] for y, way in zip(pieces(x, sizes(counts)), ways(counts))]


def returned(y: Sequence[torch.Tensor], counts: Counts) -> list[torch.Tensor]:
    """The way home of :func:`dispatched`."""
    return pieces([one[way.order.argsort()] for one, way in zip(y, ways(counts))], back(sizes(counts)))


def there_and_back(job: Job, sent: Counts, row: int = WIDTH) -> list[int]:
    """By rank, the bytes of rows of so many numbers that go to other ranks, and of gradients that go home."""
    both = [[n + m for n, m in zip(*rows)] for rows in zip(sent, back(sent))]
    return [(sum(ns) - ns[rank]) * row * job.dtype.itemsize for rank, ns in enumerate(both)]
