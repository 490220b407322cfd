"""The checks of what goes further: clip_sharded, reshard and prefetch."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import (
    CASES,
    allocate,
    copy_of,
    free,
    numbers,
    padded,
    part,
    storage_bytes,
    unit_of,
    weights_of,
)
from distlab.course.compare import difference
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job, with_ranks
from distlab.course.kit.driving import call, under_way
from distlab.course.kit.experiment import Complaint, Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.course.trial import Trial
from distlab.ranks.watching.spans import span

WORK = "unit.work after prefetch(unit)"
ELSEWHERE = "what the gather reads lies in unit.weights_P, at another place than this rank's part"
SIZES = 53, 40  # of the gradients of two units


def gradients_of(job: Job) -> list[torch.Tensor]:
    """The padded gradients of the units, which make one of norm 9.7."""
    drawn = [job.random(size, of=size) for size in SIZES]
    scale = 9.7 / torch.cat(drawn).norm()
    return [padded([gradient * scale], job.ranks) for gradient in drawn]


def drive_clip(lab, job: Job) -> dict:
    """On a rank: what ``clip_sharded`` returns, and the shards' gradients after it."""
    units = [unit_of(numbers(job, [size]), 3, dist.get_rank(), job.ranks) for size in SIZES]
    for unit, gradient_P in zip(units, gradients_of(job)):
        unit.shard_S.grad = part(gradient_P, dist.get_rank(), job.ranks).clone()
    norm = call(lab.clip_sharded, units, job["max_norm"])
    return {
        "the gradients": [copy_of(unit.shard_S.grad) for unit in units],
        "what is returned": norm,
        "the shards": [copy_of(unit.shard_S) for unit in units],
    }


def expect_clipped(job: Job, came: list[dict]) -> list[dict]:
    """All scaled by one factor; torch's own has a small number under it, so that it never divides by 0."""
    gradients, shards = gradients_of(job), [padded(numbers(job, [size]), job.ranks) for size in SIZES]
    norm = sqrt(sum(float(g.square().sum()) for g in gradients))

    def scaled(factor: float) -> list[list[torch.Tensor]]:
        return [[part(g, rank, job.ranks) * factor for g in gradients] for rank in range(job.ranks)]

    factors = [min(1.0, job["max_norm"] / (norm + small)) for small in (0.0, 1e-6)]
    got = [of_rank["the gradients"] for of_rank in came]
    want = next((w for w in map(scaled, factors) if not difference(got, w, job.tolerance)), scaled(factors[0]))
    return [
        {
            "the gradients": want[rank],
            "what is returned": norm,
            "the shards": [part(s, rank, job.ranks) for s in shards],
        }
        for rank in range(job.ranks)
    ]


CLIP_SHARDED = Exercise(
    "clip_sharded",
    Experiment(
        [
            Case(ranks, f", units of 53 and 40 numbers, max_norm {max_norm:g}", max_norm=max_norm)
            for ranks, max_norm in ((2, 1.0), (3, 2.0), (4, 1.0), (1, 1.0), (1, 12.0), (3, 100.0), (2, 9.0))
        ],
        drive_clip,
        expect_clipped,
        # a number for each unit, of each rank perhaps
        judge=lambda job, outcome: more_than(2 * len(SIZES) * job.ranks * 8, outcome, "the bytes sent"),
        holds="every shard is scaled by the norm of the whole gradient, which every rank returns; with 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        local="Each rank used the norm of its own shards: the parts of one gradient are scaled by different factors, "
        "and it points elsewhere. The norm is that of all shards together.",
        sum_of_norms="Norms don't add up; their squares do. Sum the squares over the ranks, then take the root.",
        no_root="The squares were summed, and the root is missing.",
        mean="The squares were averaged: the square of a norm is the sum of all squares, on all ranks.",
        rounded="The norm was rounded to float32, which is what torch.tensor(a number) makes: all_reduce the sum of "
        "squares as the tensor that it is.",
        after="This is the norm after the scaling; return the one before, which shows in a training's log what came.",
        tensor="A tensor is returned, where a float is asked for: norm.item().",
        always="A gradient that is short enough was made longer: scale only where the norm is above max_norm.",
        unchanged="The gradients are what they were: scale unit.shard_S.grad in place.",
        a_unit="Each unit was scaled by a norm of its own; one norm holds for the whole gradient.",
    ),
    hints=(
        "The square of the whole norm is the sum of the squares of all numbers, on all ranks, in all units.",
        "total = the sum over the units of shard_S.grad.square().sum(); dist.all_reduce(total); norm = total.sqrt(); "
        "then shard_S.grad *= max_norm / norm where norm > max_norm; return norm.item().",
    ),
    further=True,
)


def reshard_case(old: int, new: int, count: int) -> Case:
    """So many numbers, saved by one world and loaded by another."""
    return Case(new, f", which load {count} numbers that {with_ranks(old)[5:]} saved", old=old, count=count)


def drive_reshard(lab, job: Job) -> dict:
    """On a rank: its new part, and the bytes that this keeps in memory."""
    old_parts = [p.clone() for p in padded(numbers(job, [job["count"]]), job["old"]).chunk(job["old"])]
    new_S = call(lab.reshard, old_parts, job["count"])
    return {"the part": new_S, "the bytes that it keeps in memory": storage_bytes(new_S)}


def expect_resharded(job: Job, came: list[dict]) -> list[dict]:
    """The same numbers, cut for the new world."""
    whole_P = padded(numbers(job, [job["count"]]), job.ranks)
    size = whole_P.nbytes // job.ranks
    parts = [part(whole_P, rank, job.ranks) for rank in range(job.ranks)]
    return [{"the part": p, "the bytes that it keeps in memory": size} for p in parts]


RESHARD = Exercise(
    "reshard",
    Experiment(
        [reshard_case(*sizes) for sizes in ((2, 3, 11), (3, 2, 7), (4, 3, 10), (1, 4, 5), (4, 1, 9), (2, 4, 5))],
        drive_reshard,
        expect_resharded,
        holds="each rank has its part of the same numbers, cut for the new world size; old padding gone, new padding "
        "there",
    ),
    misconceptions=misconceptions(
        old_padding="The old padding is still there, counted as numbers: cut the joined parts to num_values before you "
        "pad for the new world.",
        own_old="Rank r got the old rank r's part, whose size and place belong to the old world size.",
        floor="The remainder is lost: round the size of a part up, and pad.",
        unpadded="The last rank's part is too short: pad with zeros to world × size first, so that all parts are of "
        "one size.",
        everything="Every rank got all numbers; it wants its own part of them.",
        view="The part is a slice, a view of the whole flat tensor, and keeps all of it in memory: .clone() it.",
        dtype="The new part has torch's default dtype: make it in the old parts' own, dtype=parts[0].dtype.",
    ),
    hints=(
        "Join the old parts, drop the old padding, add the new one, cut.",
        "whole = torch.cat(parts)[:num_values]; size = -(-num_values // world); make zeros of world × size, copy whole "
        "into their start, and return [rank * size : (rank + 1) * size].clone().",
    ),
    further=True,
)


def drive_prefetch(lab, job: Job) -> dict:
    """On a rank: calls ``prefetch`` twice on a released unit, waits as the lab's hook does, and calls it once more."""
    unit = unit_of(weights_of(job), 3, dist.get_rank(), job.ranks)
    weights_P = unit.weights_P
    free(weights_P)
    with span("start"):
        call(lab.prefetch, unit)
    work, elsewhere = unit.work, _reads_elsewhere(weights_P, part(weights_P, dist.get_rank(), job.ranks))
    with span("again"):
        call(lab.prefetch, unit)
    is_work = _wait(work)
    if unit.work is not work:
        _wait(unit.work)
    unit.work = None
    if not storage_bytes(weights_P):
        allocate(weights_P)
    with span("there"):
        call(lab.prefetch, unit)
    _wait(unit.work)
    return {WORK: "a Work" if is_work else "None", ELSEWHERE: elsewhere, "unit.weights_P": copy_of(weights_P)}


def _reads_elsewhere(weights_P: torch.Tensor, own_S: torch.Tensor) -> bool:
    """Whether a message under way reads another part of the weights than a rank's own."""
    read = [tensor.data_ptr() for tensors in under_way() for tensor in tensors.read]
    start, end = weights_P.data_ptr(), weights_P.data_ptr() + weights_P.nbytes
    return any(start <= address < end and address != own_S.data_ptr() for address in read)


def _wait(work) -> bool:
    """Whether it is a Work; it is waited for."""
    if is_work := hasattr(work, "wait"):
        work.wait()
    return is_work


def judge_prefetch(job: Job, outcome: Outcome) -> Iterator[Complaint]:
    """It has not waited, and started one gather."""
    if outcome.waits(0, "start"):
        yield "", "prefetch waited for its all_gather before it came back"
    whole = padded(weights_of(job), job.ranks).nbytes
    yield from more_than(whole, outcome, "the bytes that prefetch sends", "start")
    yield from more_than(0, outcome, "the bytes that it sends for a unit that is on its way", "again")
    yield from more_than(0, outcome, "the bytes that it sends for a unit that is there", "there")


class _Kept(Experiment):
    """The driver waits for what is in unit.work: what is left was never there, or went into memory in use already."""

    def __call__(self, learners, trial: Trial) -> str:
        try:
            return super().__call__(learners, trial)
        except Wrong as wrong:
            if not trial.loose_ends:
                raise
            is_lost = any("never waited for" in line for line in trial.loose_ends)
            raise Wrong(wrong.case, wrong.detail, ("lost" if is_lost else "again",)) from None


PREFETCH = Exercise(
    "prefetch",
    _Kept(
        CASES[:3],
        drive_prefetch,
        lambda job, _: (
            [{WORK: "a Work", ELSEWHERE: False, "unit.weights_P": padded(weights_of(job), job.ranks)}] * job.ranks
        ),
        judge=judge_prefetch,
        named={ELSEWHERE: "elsewhere"},
        holds="the all-gather is under way when prefetch returns, unit.work is there to wait for, and nothing "
        "goes twice",
    ),
    misconceptions=misconceptions(
        waits="The gather was waited for inside prefetch, so nothing can be computed beside it: pass async_op=True, "
        "and leave the wait to whoever needs the weights.",
        lost="The Work was not kept, so nobody can wait for it: put it into unit.work.",
        elsewhere="The shard was copied into another rank's part of weights_P and gathered from there: that part is "
        "written by the gather while it is being read. Hand it the shard itself, or this rank's own part.",
        again="A gather was started for a unit that is there or on its way: Ψ elements for nothing. Allocated means "
        "that it is, or will be, there.",
        no_room="The storage of weights_P is empty: allocate it before the gather writes into it.",
    ),
    hints=(
        "It is gather, but it does not wait: a collective with async_op=True returns a Work at once.",
        "if is_there(unit.weights_P): return; allocate(unit.weights_P); unit.work = all_gather(unit.weights_P, "
        "unit.shard_S.data, async_op=True).",
    ),
    further=True,
)
