"""The checks of the two forms of stage 1: each rank updates its own part of the weights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import (
    CASES,
    copy_of,
    divisor,
    mean_of,
    numbers,
    padded,
    part,
    same_memory,
    unit_of,
    update,
    weights_of,
)
from distlab.course.compare import difference
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

STEPS = 1, 2, 0  # times the gradients: at the last they are zeros, and an optimizer may move by its momentum
GOT = "the gradient that the optimizer got"


def stepped(step: Callable[[SimpleNamespace], None], job: Job, rank: int) -> dict:
    """Of each of three steps of a rank what the optimizer got, the weights, and which tensors are still themselves."""
    unit, found = unit_of(weights_of(job), 1, rank, job.ranks), {}
    weights_P, gradient_P = unit.weights_P, unit.gradient_P
    for number, turn in enumerate(STEPS):
        unit.optimizer.seen.clear()
        unit.shard_S.grad = None
        gradient_P.zero_()
        for parameter, own in zip(unit.parameters, numbers(job, job["sizes"], rank, turn)):
            parameter.grad.add_(own)
        call(step, unit)
        notes = {
            "optimizer steps": len(unit.optimizer.seen),
            GOT: dict(enumerate(unit.optimizer.seen)).get(0),
            "the weights": copy_of(unit.weights_P),
            "unit.weights_P is the tensor that it was": same_memory(unit.weights_P, weights_P),
            "unit.gradient_P is the tensor that it was": same_memory(unit.gradient_P, gradient_P),
            "other ranks' parts of gradient_P that hold this rank's": _elsewhere(job, rank, turn, gradient_P),
        }
        found |= {f"step {number + 1}, {what}": value for what, value in notes.items()}
    return found


def _elsewhere(job: Job, rank: int, turn: int, gradient_P: torch.Tensor) -> list[int]:
    """The places, not its own, where this rank's part of the sum stands, or of the mean."""
    mean, others = part(mean_of(job, turn), rank, job.ranks), set(range(job.ranks)) - {rank}
    times = [(other, c) for other in sorted(others) for c in (1, job.ranks)]
    return [other for other, c in times if not difference(part(gradient_P, other, job.ranks), c * mean, 1e-5)]


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What one process would do."""

    def as_one(rank: int) -> Callable[[SimpleNamespace], None]:
        turns = iter(STEPS)
        return lambda unit: update(unit, mean_of(job, next(turns)), rank, job.ranks)

    return [stepped(as_one(rank), job, rank) for rank in range(job.ranks)]


def at_most(times: int) -> Callable[[Job, Outcome], list]:
    """A judge: a step sends at most so many times what a reduce-scatter of the gradient sends."""

    def judge(job: Job, outcome: Outcome) -> list[tuple[str, str]]:
        most = times * len(STEPS) * padded(weights_of(job), job.ranks).nbytes
        return more_than(most, outcome, "the bytes sent in three steps")

    return judge


def fields(job: Job, outcome: Outcome | None) -> dict:
    """By what the sum was divided."""
    return {"constant": divisor(outcome.values[0][f"step 1, {GOT}"], mean_of(job, 1), job.ranks) if outcome else 0}


COMMON = dict(
    no_step="No optimizer took a step: call unit.optimizer.step().",
    only_rank_0="Only rank 0's optimizer stepped: every rank has a shard of its own, which nobody else moves.",
    skips_zeros="Where the gradient was all zeros, the optimizer did not step. One with momentum or weight decay moves "
    "the weights all the same: step whatever the gradient is.",
    no_gradient="The optimizer stepped without a gradient: put this rank's part into unit.shard_S.grad before it.",
    sum="The gradients are {ranks} times too large: summed over {ranks} ranks, never divided.",
    own="Every rank stepped with its own gradients: what the others computed never arrived in them.",
    own_divided="Every rank's own gradients were divided by {ranks}, and never added up: the sum went into another "
    "tensor than the one that is used.",
    twice="The gradients are {ranks} times too small: divided by the number of ranks twice.",
    first_part="Every rank's optimizer got the first part of the gradient; rank r's part is the r-th.",
    neighbour="Every rank's optimizer got the next rank's part of the gradient; rank r's part is the r-th.",
    constant="The sum over {ranks} ranks was divided by {constant}: divide by the world size, whatever it is.",
    whole="The shard was given the whole gradient. It has one part of the weights, and wants the same part of the "
    "gradient: 1/N of the optimizer's states is the point.",
    swapped="The two tensors of a collective stand the wrong way round, or one is of the wrong length: "
    "all_gather(where P numbers go, the S of this rank), reduce_scatter(where S numbers go, the P of this rank).",
    not_gathered="Each rank has moved its own part of the weights, and has the old numbers everywhere else: gather "
    "the parts after the step.",
    gathered_first="The weights are one step behind: they were gathered before the update, not after it.",
    summed_weights="The weights of all ranks were added up. Every rank has one part that is right: an all_gather puts "
    "the parts side by side, an all-reduce sums.",
    new_weights="The new weights are in a new tensor, and the model's parameters are views of the old one: they never "
    "see them. Gather into the weights_P that is there.",
    new_gradient="unit.gradient_P is a new tensor now, and the parameters' .grad are views of the old one, which "
    "nobody sets to zero any more: the next gradients are added to it. Divide in place: unit.gradient_P /= n.",
)

ZERO1_BY_ALL_REDUCE = Exercise(
    "zero1_by_all_reduce",
    Experiment(
        CASES,
        lambda lab, job: stepped(lab.zero1_by_all_reduce, job, dist.get_rank()),
        expect,
        judge=at_most(3),
        fields=fields,
        holds="weights equal one process's after every step, with 1 to 4 ranks, and no more is sent than an "
        "all-reduce and an all-gather send",
    ),
    misconceptions=misconceptions(**COMMON),
    hints=(
        "Four lines of thought: average the gradient as in data parallelism; hand this rank's part of it to the "
        "optimizer; step; collect everybody's parts of the weights.",
        "dist.all_reduce(unit.gradient_P), divide by the world size, unit.shard_S.grad = "
        "unit.gradient_P.chunk(world)[rank], unit.optimizer.step(), all_gather(unit.weights_P, unit.shard_S).",
    ),
)

ZERO1_STEP = Exercise(
    "zero1_step",
    Experiment(
        CASES,
        lambda lab, job: stepped(lab.zero1_step, job, dist.get_rank()),
        expect,
        judge=at_most(2),
        fields=fields,
        holds="weights equal one process's after every step, and 2Ψ (N − 1)/N elements at most were sent, with 1 to 4 "
        "ranks",
    ),
    misconceptions=misconceptions(
        **COMMON,
        all_reduce="The weights are right, and 3Ψ were sent: the all-reduce brings every rank the whole averaged "
        "gradient, of which it uses one part. A reduce-scatter brings that part alone: 2Ψ.",
        both="The gradient was reduced twice, by a reduce-scatter and by an all-reduce: the first is enough.",
        two_all_reduces="The weights are right, but went through an all-reduce, which costs two all-gathers: every "
        "rank has one part that is right, so all_gather them.",
        reduce_scatter_and_all_reduce="The gradient goes the short way, by reduce-scatter; but the weights went "
        "through an all-reduce, which costs two all-gathers.",
        reduces="The whole gradient was reduced to each rank in turn: a reduce_scatter brings each rank its part, for "
        "the bytes of one of these.",
        elsewhere="reduce_scatter wrote into another part of the tensor that it reads than the rank's own. It may do "
        "so only in its own part, chunk(n)[rank]: what else it overwrites, somebody may still have to read.",
    ),
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. Between the two, each rank holds its own part of the "
        "sum: the update belongs there.",
        "part_S = unit.gradient_P.chunk(world)[rank]; reduce_scatter(part_S, unit.gradient_P) writes this rank's part "
        "of the sum there. Divide it, give it to the shard, step, and all_gather the weights as before.",
    ),
)
