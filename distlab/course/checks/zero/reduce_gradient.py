"""The check of reduce_gradient: a unit's gradients end as this rank's part of their mean, added to what was there."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.zero.common import (
    coded,
    divided,
    elements,
    held_inside,
    in_words,
    inside,
    padded,
    part,
    storage_bytes,
    unit_of,
    wrong_constant,
)
from distlab.course.checks.zero.zero1 import why_sizes_differ
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span

CASES = ((3, (4, 2)), (2, (2, 2)), (4, (4, 6)), (1, (3, 2)))  # ranks, numbers of two parameters
WATCHED = 3  # ranks of the run whose memory is looked at
BYTES = 8  # of a float64


def reduced(reduce_gradient, counts: tuple[int, int]) -> dict:
    """On a rank: two micro-batches; after each the gradient of the shard, and which parameters still have theirs.

    In the second one the second parameter got no gradient.
    """
    unit = unit_of([nn.Parameter(torch.zeros(count, dtype=torch.float64)) for count in counts], apart=True)
    notes = dict(gradients=[], left=[], bytes=[])
    for turn in (1, 2):
        first, second = coded(sum(counts), dist.get_rank(), turn).split(list(counts))
        unit.parameters[0].grad, unit.parameters[1].grad = first.clone(), second.clone() if turn == 1 else None
        with span("reduce", turn):
            reduce_gradient(unit)
        gradient_S = unit.shard_S.grad
        notes["gradients"].append(None if gradient_S is None else gradient_S.detach().clone())
        notes["bytes"].append(storage_bytes(gradient_S))
        notes["left"].append(sum(p.grad is not None for p in unit.parameters))
    return notes


def check_reduce_gradient(learners: Callable, trial: Trial) -> str:
    """Tries two micro-batches in a row."""
    for ranks, counts in CASES:
        case = f"{with_ranks(ranks)} and parameters of {counts[0]} and {counts[1]} numbers"
        try:
            record = True if ranks == WATCHED else "messages"
            run = trial.watch(case, reduced, learners, counts, ranks=ranks, record=record)
        except RankFailed as failed:
            raise failed.because(*why_sizes_differ(failed)) from None
        _values(case, [v["gradients"] for v in run.values], ranks, counts)
        length = sum(counts) + -sum(counts) % ranks
        sizes = elements(inside(run.recording, 0, "reduce1"))
        if ranks > 1 and dict(sizes) != {"reduce_scatter": length}:
            known = ("all-reduce",) if dict(sizes) == {"all_reduce": length} else ()
            detail = f"elements: expected reduce_scatter {length}, got {in_words(sizes)}"
            raise Wrong(case, detail, known)
        if left := max(max(v["left"]) for v in run.values):
            raise Wrong(case, f"parameters that still have a .grad: expected 0, got {left}", ("kept",))
        _memory(case, run, BYTES * length // ranks)
    return (
        "this rank's part of the mean gradient is in shard_S.grad, micro-batches add up, and the whole gradients are "
        "gone; with 1 to 4 ranks"
    )


def _memory(case: str, run: Run, size: int) -> None:
    """Raises Wrong unless the shard's gradient is ``size`` bytes, and whole gradients are gone when they are sent."""
    got = max(max(value["bytes"]) for value in run.values)
    if got > size:
        detail = f"bytes that unit.shard_S.grad keeps in memory: expected {size}, got {got}"
        raise Wrong(case, detail, ("view",))
    _, *while_sent = held_inside(run.recording, 0, "reduce1") or [None]
    gradients = max((look.gradients for look in while_sent), default=0)
    if gradients > size:
        detail = f"bytes of gradients while the bucket is sent: expected {size} at most, got {gradients}"
        raise Wrong(case, detail, ("late-free",))


def _values(case: str, got: list[list], ranks: int, counts: tuple[int, int]) -> None:
    own = []
    for turn in (1, 2):
        full = [coded(sum(counts), rank, turn) for rank in range(ranks)]
        if turn == 2:
            full = [torch.cat([g[: counts[0]], torch.zeros(counts[1], dtype=g.dtype)]) for g in full]
        own.append([padded([g], ranks) for g in full])
    means = [sum(by_rank) / ranks for by_rank in own]

    def parts(first: torch.Tensor, second: torch.Tensor) -> list[list[torch.Tensor]]:
        return [[part(first, rank, ranks), part(second, rank, ranks)] for rank in range(ranks)]

    want = parts(means[0], means[0] + means[1])
    beliefs = {
        "nothing": [[None, None]] * ranks,
        "cleared-first": parts(torch.zeros_like(means[0]), torch.zeros_like(means[0])),
        "sum": parts(means[0] * ranks, (means[0] + means[1]) * ranks),
        "overwritten": parts(means[0], means[1]),
        "mixed": parts(means[0], means[0] / ranks + means[1]),
        "own": [[part(own[0][r], r, ranks), part(own[0][r] + own[1][r], r, ranks)] for r in range(ranks)],
        "twice": parts(means[0] / ranks, (means[0] + means[1]) / ranks),
        "first-part": [[part(means[0], 0, ranks), part(means[0] + means[1], 0, ranks)]] * ranks,
    }
    if constant := wrong_constant(got, beliefs["sum"], ranks):
        beliefs["constant"] = divided(beliefs["sum"], constant)
    fields = dict(ranks=ranks, constant=constant)
    compare(f"{case}, shard_S.grad after each of two micro-batches", got, want, beliefs, **fields)


REDUCE_GRADIENT = Exercise(
    "reduce_gradient",
    check_reduce_gradient,
    misconceptions=misconceptions(
        nothing="unit.shard_S.grad is None: the part that reduce_scatter wrote was not put there.",
        cleared_first="The gradient is zeros: .grad was set to None before flatten(unit) had copied it.",
        swapped="The two tensors of reduce_scatter stand the wrong way round, or one is of the wrong length: first "
        "where S numbers go, then the P of this rank.",
        sum="The gradient is {ranks} times too large: summed over {ranks} ranks, never divided.",
        overwritten="The second micro-batch replaced the gradient of the first: add to unit.shard_S.grad if there is "
        "one.",
        mixed="The first micro-batch's gradient was divided by {ranks} a second time, when the second was added: "
        "divide what arrives, before you add it.",
        own="This is the rank's own gradient: what reduce_scatter wrote was not used.",
        twice="The gradient is {ranks} times too small: divided by the number of ranks twice.",
        constant="The sum over {ranks} ranks was divided by {constant}: divide by the world size, whatever it is.",
        first_part="Every rank got the first part; rank r's part is the r-th, which is what reduce_scatter gives it.",
        whole="The shard was given the whole gradient; it wants the part that reduce_scatter wrote.",
        kept="The parameters still have their whole .grad, as large as the unit's weights: set it to None.",
        view="unit.shard_S.grad is a view of the bucket, and keeps all of it in memory: nothing is saved so. Let "
        "reduce_scatter write into a tensor of the shard's size, torch.empty_like(unit.shard_S).",
        late_free="The gradients are in memory twice while they are sent, in the bucket and as .grad: set .grad to "
        "None after flatten(unit) and before reduce_scatter.",
        all_reduce="An all-reduce brings every rank the whole gradient, for twice the bytes: a reduce-scatter brings "
        "each its part.",
    ),
    hints=(
        "It is what zero2_step does in a hook, with one change: what is in unit.shard_S.grad stays, and the new part "
        "is added to it.",
        "part_S = torch.empty_like(unit.shard_S.data), gradient_P = flatten(unit); .grad = None for each of "
        "unit.parameters; reduce_scatter(part_S, gradient_P), part_S /= world; unit.shard_S.grad = part_S if it is "
        "None, else += part_S.",
    ),
)
