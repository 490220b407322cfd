"""The check of reduce_gradient: a unit's gradients end as this rank's part of their mean, added to what was there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import (
    copy_of,
    divisor,
    free,
    numbers,
    padded,
    part,
    storage_bytes,
    unit_of,
    weights_of,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Complaint, Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.ranks.watching.spans import span

BATCHES = 1, 2, 3  # micro-batches; an update comes before the last


def case(sizes: list[int], ranks: int) -> Case:
    """Two parameters; where memory is looked at all is slower, so that is one case."""
    words = f" and parameters of {sizes[0]} and {sizes[1]} numbers"
    return Case(ranks, words, sizes=sizes, record=True if ranks == 2 else "messages")


def own_gradients(job: Job, rank: int, turn: int) -> list[torch.Tensor | None]:
    """What a rank brings; in the second micro-batch the second parameter got no gradient."""
    first, second = numbers(job, job["sizes"], rank, turn)
    return [first, None if turn == 2 else second]


def reduced(reduce_gradient: Callable[[SimpleNamespace], None], job: Job, rank: int) -> dict:
    """Of each micro-batch of a rank the gradient of the shard, and which parameters still have theirs."""
    unit, found = unit_of(weights_of(job), 3, rank, job.ranks), {}
    free(unit.weights_P)  # as the lab has it: a unit is released when its backward pass is done
    for turn in BATCHES:
        if turn == BATCHES[-1]:
            unit.shard_S.grad = None
        for parameter, gradient in zip(unit.parameters, own_gradients(job, rank, turn)):
            parameter.grad = gradient
        with span(f"reduce {turn}"):
            call(reduce_gradient, unit)
        notes = {
            "unit.shard_S.grad": copy_of(unit.shard_S.grad),
            "parameters that still have a .grad": sum(p.grad is not None for p in unit.parameters),
            "bytes that it keeps beyond its own": max(0, storage_bytes(unit.shard_S.grad) - unit.shard_S.nbytes),
            "unit.shard_S": copy_of(unit.shard_S),
        }
        found |= {f"micro-batch {turn}, {what}": value for what, value in notes.items()}
    return found


def mean_of(job: Job, turn: int) -> torch.Tensor:
    """The padded mean over the ranks of their gradients; None counts as zeros."""
    by_rank = [own_gradients(job, rank, turn) for rank in range(job.ranks)]
    none = torch.zeros(job["sizes"][1], dtype=job.dtype)
    return sum(padded([none if g is None else g for g in own], job.ranks) for own in by_rank) / job.ranks


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The parts of the mean, added up until the update."""

    def as_one(rank: int) -> Callable[[SimpleNamespace], None]:
        turns = iter(BATCHES)

        def reduce_gradient(unit: SimpleNamespace) -> None:
            own_S, old_S = part(mean_of(job, next(turns)), rank, job.ranks), unit.shard_S.grad
            unit.shard_S.grad = own_S.clone() if old_S is None else old_S + own_S
            for parameter in unit.parameters:
                parameter.grad = None

        return reduce_gradient

    return [reduced(as_one(rank), job, rank) for rank in range(job.ranks)]


def judge(job: Job, outcome: Outcome) -> Iterator[Complaint]:
    """Every number is sent once, when it is no longer in a .grad too."""
    whole = padded(numbers(job, job["sizes"]), job.ranks).nbytes
    yield from more_than(len(BATCHES) * whole, outcome, "the bytes sent for three micro-batches")
    for turn in BATCHES:
        _, _, *while_sent = outcome.memory(0, f"reduce {turn}") or [None, None]  # two looks as the two spans begin
        if (gradients := max((look.gradients for look in while_sent), default=0)) > whole // job.ranks:
            words = f"expected {whole // job.ranks} at most, got {gradients}"
            yield f"micro-batch {turn}, the bytes of gradients while the bucket is sent", words


def fields(job: Job, outcome: Outcome | None) -> dict:
    """By what the sum was divided."""
    got = outcome.values[0]["micro-batch 1, unit.shard_S.grad"] if outcome else None
    return {"constant": divisor(got, mean_of(job, 1), job.ranks)}


REDUCE_GRADIENT = Exercise(
    "reduce_gradient",
    Experiment(
        [case([4, 3], 3), case([2, 3], 2), case([4, 6], 4), case([3, 2], 1)],
        lambda lab, job: reduced(lab.reduce_gradient, job, dist.get_rank()),
        expect,
        judge=judge,
        fields=fields,
        holds="this rank's part of the mean gradient is in shard_S.grad, micro-batches add up, and the whole gradients "
        "are gone; with 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        nothing="unit.shard_S.grad is None: the part that reduce_scatter wrote was not put there.",
        cleared_first="The gradient is zeros: .grad was set to None before flatten(unit) had copied it.",
        swapped="The two tensors of reduce_scatter stand the wrong way round, or one is of the wrong length: first "
        "where S numbers go, then the P of this rank.",
        sum="The gradient is {ranks} times too large: summed over {ranks} ranks, never divided.",
        overwritten="The second micro-batch replaced the gradient of the first: add to unit.shard_S.grad if there is "
        "one.",
        one_buffer="unit.shard_S.grad is the memory into which the next reduce_scatter writes, so that what was there "
        "is lost before anything is added to it: make a new part_S at each call.",
        skips_none="A micro-batch in which one of the parameters got no gradient was left out as a whole. The others "
        "got theirs, and flatten(unit) takes None as zeros.",
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
