"""What the ranks of lab 01 bring, a call that works in place on it, and sentences that several exercises share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distlab.course.checks.collectives.coding import RETURNED, coded
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call

_MOST = 500  # messages of one rank in one job: several times what any exercise takes


def cases(shapes: dict[int, list[tuple[int, ...]]]) -> list[Case]:
    """Tensors of these shapes, by number of ranks."""
    return [Case(ranks, f" and a tensor of shape {shape}", shape=shape) for ranks in shapes for shape in shapes[ranks]]


def brought(job: Job, rank: int) -> torch.Tensor:
    """What a rank brings: coded numbers in float64; float32 has not digits enough for those, and gets random ones."""
    if job.dtype == torch.float64:
        return coded(rank, torch.Size(job["shape"]).numel()).view(job["shape"])
    return job.random(*job["shape"], of=rank)


def spoilt(job: Job, x: torch.Tensor) -> torch.Tensor:
    """The same, nan in float32, where it is to be overwritten: 0 × nan is nan. Coded numbers stay, to be decoded."""
    return x if job.dtype == torch.float64 else torch.full_like(x, float("nan"))


def total(job: Job) -> torch.Tensor:
    """The sum of what all ranks bring."""
    return sum(brought(job, rank) for rank in range(job.ranks))


def changed(function, row: torch.Tensor, *more) -> dict:
    """On a rank: what stands in ``row`` after a call that works in place and returns nothing.

    The function gets a view, as ring_all_reduce hands one on: a tensor that it puts in the place of its own is lost.
    """
    with few_messages():
        returned = call(function, row.view(row.shape), *more, changes=(0,))
    return {"x": row, RETURNED: "nothing" if returned is None else f"a {type(returned).__name__}"}


def in_place(wanted: list[dict]) -> list[dict]:
    """What is wanted of each rank after such a call."""
    return [values | {RETURNED: "nothing"} for values in wanted]


@contextmanager
def few_messages() -> Iterator[None]:
    """On a rank: ends a loop that sends or receives for ever, which would last until the check's time is up."""
    count = itertools.count(1)

    def counting(real):
        @functools.wraps(real)
        def begin(*args, **kwargs):
            if next(count) > _MOST:
                raise RuntimeError(f"more than {_MOST} messages: what changes at each turn of your loop, and ends it?")
            return real(*args, **kwargs)

        return begin

    with ExitStack() as stack:
        for name in ("isend", "irecv"):  # send and recv call these
            replaced = counting(getattr(dist, name))
            for module in (dist, distributed_c10d):  # the same in both: batch_isend_irecv looks whether it is
                stack.enter_context(mock.patch.object(module, name, replaced))
        yield


FAILURES = dict(
    itself="A rank sends to itself, or receives from itself: work out again which rank is at the other end.",
    crossed="Sender and receiver don't name each other: whom a rank receives from must be the one that sends to it.",
    room="What arrives is {dtype}, and the room for it is not: torch.empty_like(…) takes over the dtype, torch.empty "
    "does not.",
)
TRAFFIC = dict(
    widened="x has {own} bytes an element, and the messages carry {sent}: send x's own numbers, in its own dtype.",
    collective="It calls {kind}; this exercise is to be built from send and recv alone.",
)
SERIAL = (
    "The steps wait for each other: they take the time of {took} messages one after the other, where {fewest} do. "
    "On every rank, start the send with isend before you receive."
)
