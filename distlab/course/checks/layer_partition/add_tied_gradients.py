"""The check of add_tied_gradients: two copies of one weight get the sum of their gradients, and stay equal."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.exercise import Exercise
from distlab.course.kit.budget import bytes_sent
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import coded, misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.ranks.output import name_ranks

_SHAPE = torch.Size((5, 3))
_STEPS = 2
_OUTSIDE = "collectives of the group, on a rank that is not in it"


def case(ranks: int, holders: list[int], absent: bool = False) -> Case:
    """Who holds a copy; ``absent``: at the first step, the last of them has not used the weight."""
    words = f", the weight on {name_ranks(holders)}" + f", .grad None on rank {holders[-1]}" * absent
    return Case(ranks, words, holders=holders, absent=absent)


def own_gradient(job: Job, rank: int, step: int) -> torch.Tensor | None:
    """Rank r's at a step: 1, 2, 3, … times 10^r, so that a digit says whose part it is."""
    is_absent = job["absent"] and rank == job["holders"][-1] and step == 0
    return None if is_absent else coded([_SHAPE], rank, job.dtype)[0] * (step + 1)


def _gradients_at(step: int) -> str:
    return f"step {step + 1}, the gradients of the copies"


def drive(lab, job: Job) -> dict:
    """On a rank: its copy of the weight and its gradient, step by step, and what it called that is not its own."""
    rank, notes = dist.get_rank(), {}
    group = dist.new_group(job["holders"])
    weight = nn.Parameter(torch.ones(_SHAPE, dtype=job.dtype)) if rank in job["holders"] else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(_STEPS):
            if weight is not None:
                weight.grad = own_gradient(job, rank, step)
            call(lab.add_tied_gradients, weight, group)
            gradient = None if weight is None else weight.grad
            notes[_gradients_at(step)] = None if gradient is None else gradient.clone()
    return notes | {_OUTSIDE: sum("does not belong to the given group" in str(each.message) for each in said)}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The sum on every holder."""
    sums = {}
    for step in range(_STEPS):
        parts = [own_gradient(job, rank, step) for rank in job["holders"]]
        sums[_gradients_at(step)] = sum(part for part in parts if part is not None)
    return [(sums if rank in job["holders"] else dict.fromkeys(sums)) | {_OUTSIDE: 0} for rank in range(job.ranks)]


def judge(job: Job, outcome: Outcome):
    """Each copy's gradient is sent once at every step, and by nobody else."""
    most = _STEPS * 2 * _SHAPE.numel() * job.dtype.itemsize
    for rank in range(job.ranks):
        moved, sent = len(outcome.messages(rank, "call")), bytes_sent(outcome, rank)
        if rank not in job["holders"] and moved:
            yield "the messages", f"rank {rank} holds no copy: expected none of it, got some"
        elif sent > most:
            yield "the bytes sent", f"rank {rank}: expected at most {most}, got {sent}"


ADD_TIED_GRADIENTS = Exercise(
    "add_tied_gradients",
    Experiment(
        (
            case(2, [0, 1]),
            case(3, [0, 2]),
            case(1, [0]),
            case(4, [1, 2]),
            case(4, [0, 3]),
            case(2, [0, 1], absent=True),
        ),
        drive,
        expect,
        judge=judge,
        shown=lambda job, outcome: ("everyone",) if next(judge(job, outcome))[0] == "the messages" else (),
        holds="both copies get the sum of both gradients, and are equal after every step; ranks without a copy take no "
        "part; with 1 to 4 ranks, and whichever of them hold a copy",
    ),
    misconceptions=misconceptions(
        kept="Each copy keeps its own part of the gradient. The weight is used at both ends, so its gradient is the "
        "sum of the two parts; like this the copies drift apart.",
        mean="The sum was divided, as for a mean. The copies are no replicas that saw different rows: one weight was "
        "used twice, and its gradient is the sum of both parts.",
        one_side="Only rank 0 has the sum: the copies are equal now, and drift apart with the next step. Both need it, "
        "and all_reduce leaves it on both.",
        first_copied="Both copies have rank 0's part; that of the last rank is lost.",
        weights="The weights were added up, not their gradients.",
        outside="A rank without a copy called a collective of a group that it is not in. Nothing happens there, by "
        "luck: where weight is None, return.",
        everyone="The ranks without a copy take no part. Say which group the collective is for: group=group.",
        none="A rank without a copy has None for a weight, and nothing to do. Which ranks those are depends on the "
        "group: ask whether weight is None.",
        none_raises="A .grad is None where the weight was not used: it counts as zeros, and the other rank waits.",
    ),
    hints=(
        "One collective makes a sum and leaves it on every member of a group. Ranks without a copy skip it.",
        "dist.all_reduce(weight.grad, group=group). Before it, on the ranks that hold a copy, put "
        "torch.zeros_like(weight) where .grad is None.",
    ),
    further=True,
)
