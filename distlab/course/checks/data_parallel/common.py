"""What the checks of lab 02 share: batches, and means over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distlab.course.kit.case import Job
from distlab.course.kit.fixtures import Tensors

Batch = tuple[torch.Tensor, torch.Tensor]


def batch_of(job: Job, num_rows: int, of: int = 0) -> Batch:
    """Rows of 4 numbers in three classes; only the first row's first number is above 1."""
    x_BD = job.random(num_rows, 4, of=of).clamp(-1, 1)
    x_BD[:1, 0] = 2
    generator = torch.Generator().manual_seed(job.seed + 31 * of + 1)
    return x_BD, torch.randint(3, (num_rows,), generator=generator)


def mean_of(by_rank: Sequence[Tensors], rows: Sequence[int]) -> Tensors:
    """The mean over the ranks, weighted by ``rows``."""
    return {name: sum(n * tensors[name] for n, tensors in zip(rows, by_rank)) / sum(rows) for name in by_rank[0]}
