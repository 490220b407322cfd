"""What the fixtures of several labs are made of: shares, coded numbers, modules filled with known numbers."""

from __future__ import annotations

import torch
from torch import nn

from distlab.course.exercise import Misconception

NOT_FLOAT32 = 1 + 2**-27  # times a small whole number
Tensors = dict[str, torch.Tensor]


def misconceptions(**sentences: str) -> tuple[Misconception, ...]:
    """Each by its id, written with underscores, and its sentence."""
    return tuple(Misconception(id.replace("_", "-"), says) for id, says in sentences.items())


def shares(n: int, parts: int) -> list[range]:
    """Everybody's part of n things: contiguous, the first with one more."""
    size, longer = divmod(n, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def coded(sizes: list[torch.Size], rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Rank r's tensors: 1, 2, 3, … times 10^r, so that a digit says whose share a number is.

    In float64 a little more, which float32 cannot hold: what goes through float32 on its way shows.
    """
    lengths = [size.numel() for size in sizes]
    numbers = torch.arange(1, sum(lengths) + 1, dtype=torch.float64) * 10**rank * NOT_FLOAT32
    return [part.view(size).to(dtype) for part, size in zip(numbers.split(lengths), sizes)]


def gradients_of(module: nn.Module) -> Tensors:
    """Copies of all gradients, zeros for None."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def weights_of(module: nn.Module) -> Tensors:
    """Copies of all parameters."""
    return {name: p.detach().clone() for name, p in module.named_parameters()}
