"""Exercise ring_all_reduce: a reduce-scatter and an all-gather, in place."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.collectives import rings
from distlab.course.checks.collectives.calls import UNWAITED
from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded, plain
from distlab.course.checks.collectives.traffic import (
    SERIAL,
    WIDENED,
    Failed,
    check_ring,
    in_place,
    traffic_by_case,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import Trial

Shapes = list[tuple[int, ...]]
_SHAPES: dict[int, Shapes] = {3: [(6,), (7,), (2,), (2, 4)], 2: [(5,)], 4: [(8,), (10,), (3, 2, 3)], 1: [(3,)]}


def check_ring_all_reduce(learners: Callable[[torch.Tensor], None], trial: Trial) -> str:
    """Tries ``ring_all_reduce`` on 3, 2, 4 and 1 ranks, with several shapes, one of them drawn."""
    for ranks, shapes in _SHAPES.items():
        drawn = [(ranks * 2 + trial.seed % 7,)] if ranks == 4 else []
        _try(learners, trial, ranks, shapes + drawn)
    return (
        "x holds the sum on every rank, for any shape and length; each rank sends 2(n − 1) messages of about an n-th "
        "of it, so 2(n − 1)/n tensors, in 2(n − 1) steps; on 1 to 4 ranks"
    )


def _try(learners: Callable, trial: Trial, ranks: int, shapes: Shapes) -> None:
    on = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    names = [*(f"{on} and a tensor of shape {shape}" for shape in shapes), f"{on} and whole numbers in float32"]
    befores = [[coded(r, torch.Size(shape).numel()).reshape(shape) for r in range(ranks)] for shape in shapes]
    befores.append([plain(trial.seed, rank, 9) for rank in range(ranks)])
    cases = [(rows,) for rows in befores]
    try:
        run = watch(trial, RING_ALL_REDUCE.misconceptions, on, in_place, learners, cases, ranks=ranks)
    except Failed as failed:
        cause = failed.error.failures[failed.error.rank]
        raise failed.because("returns-nothing") if "NoneType" in cause.message else failed from None
    sums_by_case = list(zip(*run.values))
    for name, shape, got in zip(names, shapes, sums_by_case):
        _compare(name, got, shape)
    for name, rows, traffic in zip(names, befores, traffic_by_case(run.recording, [rows[0] for rows in befores])):
        if rows[0].dim() > 1 and max(traffic.sizes(), default=0) > traffic.chunk:
            detail = f"expected messages of at most {traffic.chunk} bytes, got {max(traffic.sizes())}"
            raise Wrong(name, detail, ("rows",), shape=tuple(rows[0].shape))
        check_ring(name, traffic, passes=2)
    compare(names[-1], sums_by_case[-1], [sum(befores[-1])] * ranks)


def _compare(case: str, got: tuple[torch.Tensor, ...], shape: tuple[int, ...]) -> None:
    ranks, length = len(got), torch.Size(shape).numel()
    before, total = [coded(rank, length) for rank in range(ranks)], coded_sum(range(ranks), length)
    gathered = rings.turn(before, 1, adds=False, steps=ranks - 1)
    beliefs = {
        "not-in-place": before,
        "mean": [total / ranks] * ranks,
        "half": rings.turn(before, 0, adds=True, steps=ranks - 1),
        "swapped": rings.turn(gathered, 0, adds=True, steps=ranks - 1) if gathered else [],
        "twice": [total + row for row in before],
    }
    shaped = {id: [row.reshape(shape) for row in rows] for id, rows in beliefs.items()}
    compare_coded(case, got, [total.reshape(shape)] * ranks, shaped, ranks=ranks)


RING_ALL_REDUCE = Exercise(
    "ring_all_reduce",
    check_ring_all_reduce,
    misconceptions=(
        Misconception("not-in-place", "x is as it was: the ring worked on a copy. x.view(-1) is x itself, seen flat."),
        Misconception("mean", "The sum was divided by {ranks}; all-reduce adds up, and whoever wants a mean divides."),
        Misconception(
            "swapped", "The halves are swapped: first the sums are formed, by the reduce-scatter, and then they spread."
        ),
        Misconception(
            "returns-nothing",
            "A None is used as a tensor: both halves work in place and return nothing, so go on with the view itself.",
        ),
        Misconception("half", "Only one chunk holds the sum on each rank: the all-gather is missing."),
        Misconception("twice", "Each rank's own numbers count twice: the sum is to replace x, not to be added to it."),
        Misconception(
            "rows",
            "A tensor of shape {shape} was cut along its first axis into uneven chunks: give the ring a flat view, "
            "x.view(-1).",
        ),
        Misconception(
            "whole",
            "Whole tensors go around: (n − 1)S bytes a rank, and a ring of chunks needs 2(n − 1)/n S.",
        ),
        Misconception("hub", "Every message goes through rank 0, whose row of the traffic is (n − 1)S bytes."),
        Misconception("no-ring", "The sums are right, but on a ring every rank sends to one neighbour only."),
        Misconception("many", "The sums are right, but a rank sent more than 2(n − 1) messages."),
        Misconception(
            "send-first",
            "Every rank waits in send, and nobody receives: start the send with isend, receive, then wait for it.",
        ),
        UNWAITED,
        WIDENED,
        SERIAL,
        Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
    ),
    hints=(
        "You have both halves, and both work in place: after ring_reduce_scatter, chunk (r + 1) mod n of the tensor is "
        "complete, and that is where ring_all_gather starts.",
        "flat = x.view(-1) is the same memory as x, seen as one long row. Give it to one half, and then to the other.",
    ),
    uses=("ring_reduce_scatter", "ring_all_gather"),
)
