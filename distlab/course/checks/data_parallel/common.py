"""What the checks of lab 02 share: batches, shards, and gradients by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

from distlab.course.exercise import Misconception
from distlab.events import Message, Span
from distlab.recording import Recording

Tensors = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]


def misconceptions(**sentences: str) -> tuple[Misconception, ...]:
    return tuple(Misconception(id.replace("_", "-"), says) for id, says in sentences.items())


def with_ranks(ranks: int) -> str:
    return f"with {ranks} rank{'s' if ranks > 1 else ''}"


def listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def shards_of(num_rows: int, ranks: int) -> list[range]:
    """Every rank's rows of a batch, the first ranks with one more."""
    size, longer = divmod(num_rows, ranks)
    starts = [rank * size + min(rank, longer) for rank in range(ranks + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def make_batch(seed: int, num_rows: int) -> Batch:
    """Rows of 4 numbers in three classes; only the first row's first number is above 1."""
    generator = torch.Generator().manual_seed(seed)
    x_BD = torch.randn(num_rows, 4, generator=generator, dtype=torch.float64).clamp(-1, 1)
    x_BD[:1, 0] = 2
    return x_BD, torch.randint(3, (num_rows,), generator=generator)


def copy_of(batch: Batch) -> Batch:
    return batch[0].clone(), batch[1].clone()


def same_batch(batch: Batch, other: Batch) -> bool:
    return torch.equal(batch[0], other[0]) and torch.equal(batch[1], other[1])


def gradients_of(model: nn.Module) -> Tensors:
    """Copies of all gradients, zeros for None."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def weights_of(model: nn.Module) -> Tensors:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def mean_of(by_rank: Sequence[Tensors], rows: Sequence[int] | None = None) -> Tensors:
    """The mean over the ranks, weighted by ``rows``."""
    rows = rows or [1] * len(by_rank)
    return {name: sum(n * tensors[name] for n, tensors in zip(rows, by_rank)) / sum(rows) for name in by_rank[0]}


def times(tensors: Tensors, factor: float) -> Tensors:
    return {name: tensor * factor for name, tensor in tensors.items()}


def bytes_sent(recording: Recording, kinds: Collection[str], after: str = "") -> int:
    """Bytes that rank 0 puts into collectives of some kinds, single numbers left out; from the span ``after`` on."""
    history = list(recording.ranks[0])
    if after:
        names = [event.name if isinstance(event, Span) else "" for event in history]
        history = history[names.index(after) :]
    messages = [event for event in history if isinstance(event, Message) and event.kind in kinds]
    return sum(message.bytes for message in messages if message.elements > 1)
