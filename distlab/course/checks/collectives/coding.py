"""Coded tensors: rank r puts 16^r into every element, so the digits of any result say whose contributions are in it.

Element i holds i + 1 parts of 1,048,576 more, so that the fraction says which element it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from distlab.ranks.output import name_ranks

RETURNED = "what it returns"  # of a function that works in place, "nothing" or "a Tensor"
UNTOUCHED = -1.0  # stands where nothing has arrived yet
_PLACES = 2**20  # float32 holds no sum of these


def coded(rank: int, length: int) -> torch.Tensor:
    """What rank ``rank`` brings: a float64 tensor, exact in all sums of up to 8 ranks."""
    return 16.0**rank + torch.arange(1, length + 1, dtype=torch.float64) / _PLACES


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


def said(what: str, got: Sequence, want: Sequence[torch.Tensor]) -> str | None:
    """Says of coded tensors in words whose numbers came where, at the first wrong place; None of others."""
    if what == RETURNED:
        return next(
            (f"rank {rank}: expected nothing, got {each}" for rank, each in enumerate(got) if each != want[0]), None
        )
    if not isinstance(want[0], torch.Tensor) or want[0].dtype != torch.float64:
        return None
    for rank, (tensor, right) in enumerate(zip(got, want)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != right.shape or tensor.dtype != right.dtype:
            return None
        for place, (value, expected) in enumerate(zip(tensor.flatten().tolist(), right.flatten().tolist())):
            if value != expected:
                right = decode(expected, len(want))
                return f"rank {rank}, place {place}: expected {right}, got {_said(value, len(want))}"
    return None


def meant(what: str, got: Sequence, want: Sequence) -> str | None:
    """What is wrong at the first wrong place of coded tensors, in a sentence; None where nothing is decoded."""
    if what == RETURNED:
        return "What it gives stands in x, and is right; only it is to return nothing: leave out the value of `return`."
    for tensor, right in zip(got, want):
        is_coded = isinstance(right, torch.Tensor) and right.dtype == torch.float64
        if not is_coded or not isinstance(tensor, torch.Tensor) or tensor.shape != right.shape:
            return None
        for value, expected in zip(tensor.flatten().tolist(), right.flatten().tolist()):
            if value != expected:
                return _meant(value, decode(value, len(want)), decode(expected, len(want)))
    return None


def _meant(value: float, got: Decoded | None, want: Decoded | None) -> str | None:
    if value == UNTOUCHED:
        return "Some place is as it was: what belongs there never arrived."
    if got is None or want is None:
        return None
    times = list(enumerate(zip(got.times, want.times)))
    if missing := [rank for rank, (came, wanted) in times if came < wanted]:
        return f"The numbers of {name_ranks(missing)} are missing."
    if more := [rank for rank, (came, wanted) in times if came > wanted]:
        return f"The numbers of {name_ranks(more)} are counted too often."
    return "Each rank's numbers are there, but those of another place: look at which chunk goes where."


def _said(value: float, ranks: int) -> str:
    if value == UNTOUCHED:
        return "nothing: it is as it was"
    return str(decode(value, ranks) or f"{value:.6g}, which is no sum of the ranks' elements")
