"""Coded tensors: rank r puts 16^r into every element, so the digits of any result say whose contributions are in it.

Element i holds i + 1 parts of 4,096 more, so that the fraction says which element it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from distlab.course.compare import compare
from distlab.course.exercise import Wrong
from distlab.ranks.output import name_ranks

UNTOUCHED = -1.0  # stands where nothing has arrived yet
_PLACES = 4096


def coded(rank: int, length: int) -> torch.Tensor:
    """What rank ``rank`` brings: a float64 tensor, exact in all sums of up to 8 ranks."""
    return 16.0**rank + torch.arange(1, length + 1, dtype=torch.float64) / _PLACES


def coded_sum(ranks: Sequence[int], length: int) -> torch.Tensor:
    """The sum of what several ranks bring; one that is named twice counts twice."""
    return sum((coded(rank, length) for rank in ranks), torch.zeros(length, dtype=torch.float64))


class Decoded(NamedTuple):
    """How often each rank's contribution is in a value, and of which element."""

    times: tuple[int, ...]
    element: int

    def __str__(self) -> str:
        ranks = [rank for rank, times in enumerate(self.times) if times]
        if len(ranks) == 1:
            times = self.times[ranks[0]]
            return f"rank {ranks[0]}'s element {self.element}" + (f", {_often(times)}" if times > 1 else "")
        again = [f"rank {rank}'s {_often(times)}" for rank, times in enumerate(self.times) if times > 1]
        counted = f", {' and '.join(again)}" if again else ""
        return f"element {self.element} summed over {name_ranks(ranks)}{counted}"


def _often(times: int) -> str:
    return "twice" if times == 2 else f"{times} times"


def decode(value: float, ranks: int) -> Decoded | None:
    """Says whose contributions make up a value; None if it is no sum of coded elements at one place."""
    if not 0 < value < 16.0**ranks:
        return None
    whole = int(value)
    times = tuple(whole // 16**rank % 16 for rank in range(ranks))
    element = (value - whole) * _PLACES / max(1, sum(times)) - 1
    return Decoded(times, int(element)) if sum(times) and element >= 0 and element.is_integer() else None


def compare_coded(
    case: str,
    got: Sequence,
    want: Sequence[torch.Tensor],
    beliefs: Mapping[str, Sequence] | None = None,
    where: str = "in x",
    **fields,
) -> None:
    """Does what :func:`distlab.course.compare.compare` does, and says in words whose numbers came where."""
    try:
        compare(case, got, want, beliefs, **fields)
    except Wrong as wrong:
        raise Wrong(case, _in_words(got, want, where) or wrong.detail, wrong.believed, **wrong.fields) from None


def _in_words(got: Sequence, want: Sequence[torch.Tensor], where: str) -> str | None:
    """Describes the first wrong element, if the tensors are alike but for their numbers."""
    for rank, (tensor, right) in enumerate(zip(got, want)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != right.shape or tensor.dtype != right.dtype:
            return None
        for place, (value, expected) in enumerate(zip(tensor.flatten().tolist(), right.flatten().tolist())):
            if value != expected:
                right = decode(expected, len(want))
                return f"on rank {rank}, place {place} {where}: expected {right}, got {_said(value, len(want))}"
    return None


def _said(value: float, ranks: int) -> str:
    if value == UNTOUCHED:
        return "nothing: it is as it was"
    return str(decode(value, ranks) or f"{value:.6g}, which is no sum of the ranks' elements")


def plain(seed: int, rank: int, length: int) -> torch.Tensor:
    """Whole numbers in float32 that differ from check to check; their sums are exact."""
    generator = torch.Generator().manual_seed(seed + rank)
    return torch.randint(-999, 999, (length,), generator=generator).float()
