"""The checks of gather and release: a unit's weights come and go, in one and the same storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import (
    CASES,
    allocate,
    copy_of,
    free,
    padded,
    part,
    storage_bytes,
    unit_of,
    weights_of,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Complaint, Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.ranks.torch_inside import storage_id
from distlab.ranks.watching.spans import span

Act = Callable[[SimpleNamespace], None]
TURNS = {1: "the first time", 2: "after an update"}


def sharded(job: Job, rank: int) -> tuple[SimpleNamespace, torch.Tensor]:
    """A rank's unit, whose weights are there, and what autograd would have kept of them: a view."""
    unit = unit_of(weights_of(job), 3, rank, job.ranks)
    return unit, unit.weights_P[1:]


def gathered(gather: Act, job: Job, rank: int) -> dict:
    """What ``gather`` brings back, to the flat tensor and to older views; each time it is called again."""
    unit, view = sharded(job, rank)
    weights_P, shard_S, found = unit.weights_P, unit.shard_S, {}
    for turn, when in TURNS.items():
        free(weights_P)
        with span("first"):
            call(gather, unit)
        with span("again"):
            call(gather, unit)
        whole_P, got_P = turn * padded(weights_of(job), job.ranks), copy_of(unit.weights_P)
        notes = {
            "is it there": storage_bytes(unit.weights_P) > 0,
            "the bytes under it": storage_bytes(unit.weights_P),
            "the views of it that are left": sum(_looks_at(unit.weights_P, each) for each in (view, *unit.parameters)),
            "the parts that have arrived": [r for r in range(job.ranks) if _is_part(got_P, whole_P, r, job.ranks)],
            "unit.weights_P": got_P,
            "unit.shard_S": copy_of(unit.shard_S),
        }
        found |= {f"{when}, {what}": value for what, value in notes.items()}
        shard_S.data *= 2
    return found


def _looks_at(flat_P: torch.Tensor, view: torch.Tensor) -> bool:
    return storage_id(view.untyped_storage()) == storage_id(flat_P.untyped_storage())


def _is_part(got_P, whole_P: torch.Tensor, rank: int, world: int) -> bool:
    """Whether one rank's part is right; others may hold anything, since what is allocated does."""
    is_whole = isinstance(got_P, torch.Tensor) and got_P.shape == whole_P.shape
    return is_whole and torch.equal(part(got_P, rank, world), part(whole_P, rank, world))


def expect_gathered(job: Job, came: list[dict]) -> list[dict]:
    """All numbers, in the storage that there was."""

    def with_all() -> Act:
        turns = iter(TURNS)

        def gather(unit: SimpleNamespace) -> None:
            if not storage_bytes(unit.weights_P):
                allocate(unit.weights_P)
                unit.weights_P.copy_(next(turns) * padded(weights_of(job), job.ranks))

        return gather

    return [gathered(with_all(), job, rank) for rank in range(job.ranks)]


def judge_gather(job: Job, outcome: Outcome) -> Iterator[Complaint]:
    """Every part is sent once, and nothing when all are there."""
    whole = padded(weights_of(job), job.ranks).nbytes
    yield from more_than(2 * whole, outcome, "the bytes sent by gather(unit), twice", "first")
    yield from more_than(0, outcome, "the bytes sent by gather(unit) when all is there", "again")


GATHER = Exercise(
    "gather",
    Experiment(
        CASES,
        lambda lab, job: gathered(lab.gather, job, dist.get_rank()),
        expect_gathered,
        judge=judge_gather,
        holds="the weights are whole again in their own storage, each part sent once, and none if they are there "
        "already",
    ),
    misconceptions=misconceptions(
        no_room="The storage of weights_P is empty, so nothing can be written into it: allocate(unit.weights_P) first.",
        new_tensor="The weights are in a new tensor. The parameters, and what autograd kept of them for the backward "
        "pass, are views of the old storage: fill that one again.",
        released="The weights are gone again when gather returns, or were never brought back.",
        not_sent="Nothing was sent: the other ranks' parts can't come from anywhere else.",
        other="The parts were added up over the ranks, which costs two all-gathers, and there is nothing to add: each "
        "rank has one part, and all want all parts.",
        not_all="Some ranks call all_gather and others don't, and wait for each other: all do, or none. Every rank has "
        "to look whether the unit is there.",
        again="A unit that was there already was gathered again, Ψ more elements for nothing: look first whether it "
        "is there.",
    ),
    hints=(
        "Is it there? Then there is nothing to do. Otherwise make room in the storage it has, and fill it from all "
        "shards.",
        "if is_there(unit.weights_P): return; allocate(unit.weights_P); all_gather(unit.weights_P, unit.shard_S.data).",
    ),
)


def released(release: Act, job: Job, rank: int) -> dict:
    """What is left after ``release`` while somebody holds a view, as autograd does; twice."""
    unit, view = sharded(job, rank)
    weights_P, found = unit.weights_P, {}
    for number, when in enumerate(("the first time", "the second time")):
        call(release, unit)
        notes = {
            "unit.shard_S": copy_of(unit.shard_S),
            "bytes under a view of the weights": storage_bytes(view),
            "unit.weights_P is the tensor that gather fills": unit.weights_P is weights_P,
            "the parameters' shapes": [tuple(p.shape) for p in unit.parameters],
        }
        allocate(weights_P)
        weights_P.fill_(number)
        notes["the parameters when it is filled again"] = [copy_of(p) for p in unit.parameters]
        found |= {f"{when}, {what}": value for what, value in notes.items()}
    return found


RELEASE = Exercise(
    "release",
    Experiment(
        CASES,
        lambda lab, job: released(lab.release, job, dist.get_rank()),
        lambda job, _: [released(lambda unit: free(unit.weights_P), job, rank) for rank in range(job.ranks)],
        named={"unit.shard_S": "writes", "bytes under a view of the weights": "some-left"},
        holds="the weights' storage is empty though a view is left, the shard and the parameters' shapes are kept",
    ),
    misconceptions=misconceptions(
        kept="The weights are still in memory: overwriting or zeroing them frees nothing. Empty the storage.",
        dropped="A name was let go, but the memory was not: autograd holds a view of the same storage for the "
        "backward pass, which keeps it alive. Empty the storage itself.",
        shard="This rank's own shard went too. From what should gather rebuild its part of the weights?",
        some_left="Some of the weights' storage is still there: release leaves 0 bytes of it, which is what "
        "free(unit.weights_P) does.",
        writes="The shard has changed. gather rebuilds the weights from the shards: release leaves them as they are.",
        shape="The parameter has lost its shape; it is a view that gather fills again, and must stay one.",
    ),
    hints=(
        "Setting names to None or to an empty tensor does not help while others hold views. The storage under all of "
        "them can be emptied.",
        "One line: free(unit.weights_P).",
    ),
)
