"""What can be said of a failure or of wrong values whatever the exercise, where no known mistake gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from distlab.course.compare import difference
from distlab.course.trial import RankFailed
from distlab.ranks.output import name_ranks

# What the runner's verdict says of messages that don't fit, and what that means; an exception speaks for itself.
_FAILURES = (
    (r"was waited for$|dropped the Work",
     "isend and irecv only begin a message: keep the Work that they return, and call its wait() before you return."),
    (r"^different|takes elements as they lie",
     "All ranks must make the same collective calls in the same order, with tensors of one dtype and one size; here "
     "they differ."),
    (r"the dtypes differ$|the receive is (shorter|longer)",
     "The tensor that receives must have the dtype and the number of elements of the one that is sent."),
    (r"the (tags|groups) differ$|the wrong peer",
     "A send and its receive must name each other: the receiver names the rank that sends, with the same tag and in "
     "the same group."),
    (r"returned and never joined|returned without|returned while others",
     "A rank returns too early, while others still wait for it: it must make every call that they need it for."),
    (r"wait.* to send to",
     "Ranks wait for each other to receive, so none can go on: start the send with isend, receive, then wait for it."),
    (r"wait.* to receive from", "Ranks wait for each other to send, so none can go on: a rank must send first."),
    (r"wait.* for (the next|the other|each other)",
     "Ranks wait for each other, each in another call, so none can go on: work out who sends to whom, and when."),
    (r"^not finished after", "It does not end: look at what ends your loops, and at what each rank waits for."),
)  # fmt: skip


def of_failure(failed: RankFailed) -> str:
    """What a failure means; "" if the runner's verdict is of no known kind."""
    error = failed.error
    cause = error.failures[error.rank]
    if not error.verdict.startswith(f"rank {error.rank} raised "):
        return next((says for pattern, says in _FAILURES if re.search(pattern, error.verdict)), "")
    if cause.hint:
        return cause.hint[0].upper() + cause.hint[1:]
    return f"Rank {error.rank} stops with an error: a line of yours raises {cause.type}."


def of_values(got: Sequence, want: Sequence, tolerance: float) -> str:
    """What sort of thing is wrong with values by rank; "" if they are of the right sort, and wrong on all ranks."""
    wrong = [rank for rank, pair in enumerate(zip(got, want, strict=True)) if difference(*pair, tolerance)]
    if not wrong:
        return ""
    if said := _of_sort(got[wrong[0]], want[wrong[0]]):
        return said
    right = [rank for rank in range(len(want)) if rank not in wrong]
    return f"It is right on {name_ranks(right)} and wrong on {name_ranks(wrong)}." if right else ""


def of_costs(what: str) -> str:
    """What is said where all values are right, and ``what`` is not: messages, memory."""
    return f"The values are right; the mistake is in {what}." if what else ""


def _of_sort(got, want) -> str:
    """That a value is of another type, shape or dtype, or holds a nan; "" if it is not, or does not."""
    if isinstance(want, dict) and isinstance(got, dict):
        return next(filter(None, (_of_sort(got[key], want[key]) for key in want if key in got)), "")
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(got) == len(want):
        return next(filter(None, map(_of_sort, got, want)), "")
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return _of_tensor(got, want)
    is_alike = isinstance(got, type(want)) or isinstance(want, int | float) and isinstance(got, int | float)
    return "" if is_alike else f"It gives {_sort(got)} where {_sort(want)} is asked for."


def _of_tensor(got: torch.Tensor, want: torch.Tensor) -> str:
    if got.shape != want.shape:
        return f"It gives a tensor of shape {tuple(got.shape)} where {tuple(want.shape)} is asked for."
    if got.dtype != want.dtype:
        return f"It gives a tensor of {got.dtype} where {want.dtype} is asked for."
    if got.isnan().any() and not want.isnan().any():
        return "It gives nan: 0 / 0 does, and 0 × inf or 0 × nan, and so may memory that nothing was written into."
    return ""


def _sort(value) -> str:
    name = type(value).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'aeiou' else ''} `{name}`"
