"""Remarks: what can be said of an answer whatever the exercise, where no known mistake gives what came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from distlab.course.compare import ROUNDED, difference
from distlab.course.kit.driving import HELD, REUSED
from distlab.course.trial import RankFailed
from distlab.events import ANY_SOURCE, Message
from distlab.ranks.output import name_ranks

CALLED_AGAIN = (
    "The first call in a process is right, and a later one, with other numbers, is not: something is kept from call "
    "to call, in a global, a default argument or an attribute."
)
_CHANGED = "It changed `{name}`, which it was given to read: other code may still need it."
_OF_MEMORY = {
    REUSED: "It returns the same memory at every call, so a later call overwrites what an earlier one gave: return a "
    "tensor of its own.",
    HELD: "It still holds tensors that it was given, or has returned, when all is over: in a global, a default "
    "argument or an attribute of the function. Their memory is never free again.",
}
_ROUNDED = (
    "The numbers went through float32 on their way, which rounds them: what you make for them must have the dtype of "
    "what comes in."
)
_SIX_DIGITS = (
    "The numbers are right to six digits, and no further: somewhere on the way they are float32, or a small number is "
    "added."
)
_ANY_SOURCE = "A receive names no rank, so it takes what any rank sends first, which may be another each time."
_BARRIER = (
    "It calls a barrier, at which every rank waits for the slowest. Nothing here needs one: each message already waits "
    "for what it needs."
)
BARRIERS = "barriers"
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


def of_changes(name: str) -> str:
    """Of something given or returned that has changed, or is held."""
    return _OF_MEMORY.get(name) or _CHANGED.format(name=name)


def of_detail(what: str, detail: str) -> str:
    """What a complaint shows whatever the exercise; "" if that is nothing."""
    if what == BARRIERS:
        return _BARRIER
    return _ROUNDED if detail.endswith(ROUNDED) else ""


def of_digits(got: Sequence, want: Sequence, dtype: torch.dtype) -> str:
    """Of values that are hardly off, by rank; "" if they are."""
    is_near = dtype == torch.float64 and not any(difference(*pair, 1e-6) for pair in zip(got, want))
    return _SIX_DIGITS if is_near else ""


def of_messages(messages: Iterable[Message]) -> str:
    """Of messages that may be others the next time; "" if there are none."""
    return _ANY_SOURCE if any(m.kind == "recv" and m.partner == ANY_SOURCE for m in messages) else ""
