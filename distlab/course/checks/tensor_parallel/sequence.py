"""The checks of gather_sequence and reduce_scatter_sequence (further): places of all ranks, and sums of places."""

from __future__ import annotations

import torch

from distlab.course.checks.tensor_parallel.common import (
    GROUPS,
    WORLDS,
    Seat,
    Ways,
    asked,
    case,
    drawn,
    own_group,
    refusal,
    size_of_groups,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import coded, misconceptions

WHOLE, NUMBERS = (2, 6, 3), 2 * 6 * 3


def together(job: Job, seat: Seat) -> torch.Tensor:
    """What all ranks of a group share."""
    return drawn(job, seat.group, 0, *WHOLE)


def own(job: Job, rank: int) -> torch.Tensor:
    """A whole tensor of a rank's own, a part of a sum: a digit of any sum says whose numbers are in it."""
    return coded([torch.Size(WHOLE)], rank, job.dtype)[0]


def part_of(whole: torch.Tensor, seat: Seat) -> torch.Tensor:
    """A rank's places of a whole tensor."""
    return whole[:, seat.part(WHOLE[1])]


def sums(job: Job, seat: Seat) -> torch.Tensor:
    """A rank's places of its group's sum."""
    return part_of(sum(own(job, rank) for rank in seat.ranks), seat)


_GATHER = Ways(
    "gather_sequence",
    lambda job, seat: ((part_of(together(job, seat), seat),), own(job, seat.rank)),
    lambda job, seat: (together(job, seat), sums(job, seat)),
    forward=NUMBERS,
    backward=NUMBERS,
)

_SCATTER = Ways(
    "reduce_scatter_sequence",
    lambda job, seat: ((own(job, seat.rank),), part_of(together(job, seat), seat)),
    lambda job, seat: (sums(job, seat), together(job, seat)),
    forward=NUMBERS,
    backward=NUMBERS,
)


def _numbers(job: Job) -> dict[str, int]:
    return {"places": 5, "ranks": job.ranks}


def _drive(lab, job: Job) -> dict:
    """On a rank: what comes both ways, or how 5 places are refused."""
    if lab.name == _GATHER.name:
        return _GATHER.drive(lab, job)
    if not job["refuses"]:
        return _SCATTER.drive(lab, job)
    args = torch.ones(1, 5, 2, dtype=job.dtype), own_group(job)
    return asked("", lab.reduce_scatter_sequence, args, _numbers(job), refuses=True)


def _expect(job: Job, came: list[dict]) -> list[dict]:
    return [refusal(_numbers(job))] * job.ranks if job["refuses"] else _SCATTER.expect(job, came)


GATHER_SEQUENCE = Exercise(
    "gather_sequence",
    _GATHER.experiment(
        _drive,
        [case(groups) for groups in WORLDS],
        "every rank has all places, and the gradient of its own, summed over the group: an all-gather forward, a "
        "reduce-scatter backward; on 1 to 3 ranks and in two groups",
    ),
    misconceptions=misconceptions(
        no_gather="Each rank still has its own places only.",
        other_axis="The parts were put together along the first axis, the rows of the batch; the places are axis 1.",
        last_axis="The parts were put together along the last axis, the model's width; the places are axis 1.",
        own_part="Each rank cut its own places out of its own gradient. The other ranks used these places too: their "
        "gradients are to be added up, by a reduce-scatter.",
        mean="The gradient is the mean over {ranks} ranks; the sum is asked for.",
        cut_off="No gradient comes back: y has lost its way to x. Return what ThereAndBack.apply returns.",
        all_reduce="The numbers are right, and an all-reduce sends twice what is needed: each rank wants the sum of "
        "its own places only, which is a reduce-scatter.",
        writes="It changed x or the gradient of y.",
        world="It works in the group of all ranks, and not in the one that it was given: hand group on.",
    ),
    hints=(
        "Forward: dist.all_gather into a list of empty parts, then torch.cat along axis 1. Backward: cut the gradient "
        "along axis 1 into one part a rank, and dist.reduce_scatter adds up each on its rank.",
        "Back: parts = [part.contiguous() for part in grad_y.chunk(dist.get_world_size(group), dim=1)], grad_x = "
        "torch.empty_like(parts[0]), dist.reduce_scatter(grad_x, parts, group=group).",
    ),
    further=True,
)


REDUCE_SCATTER_SEQUENCE = Exercise(
    "reduce_scatter_sequence",
    Experiment(
        [case(groups, refuses=False) for groups in WORLDS] + [case(WORLDS[0], " and 5 places", refuses=True)],
        _drive,
        _expect,
        judge=_SCATTER.judge,
        tells=GROUPS,
        fields=size_of_groups,
        holds="each rank has the sums of its own places, and the gradient of all: a reduce-scatter forward, an "
        "all-gather backward; places that can't be shared out are refused by name; on 1 to 3 ranks and in two groups",
    ),
    misconceptions=misconceptions(
        no_sum="Each rank cut its own places out of its own x. Every rank's x holds a part of the sum: they are to be "
        "added up.",
        other_axis="It is cut along the first axis, the rows of the batch; the places are axis 1.",
        no_scatter="Every rank has the sums of all places; each is to have its own only.",
        mean="This is the mean over {ranks} ranks; the sum is asked for.",
        own_part="The gradient of the other ranks' places is 0 here. This rank's x is a part of their sums too: gather "
        "the gradients of all places.",
        both_ways="The gradient is {ranks} times too large: gathered it is complete, and there is nothing to add up.",
        cut_off="No gradient comes back: y has lost its way to x. Return what ThereAndBack.apply returns.",
        all_reduce="The numbers are right, and an all-reduce sends twice what is needed: each rank wants the sum of "
        "its own places only, which is a reduce-scatter.",
        writes="It changed x or the gradient of y.",
        not_refused="5 places can't be shared out among 2 ranks: raise a ValueError that names both numbers.",
        world="It works in the group of all ranks, and not in the one that it was given: hand group on.",
    ),
    hints=(
        "It is gather_sequence read backwards. Look at the number of places first: x.shape[1] % the group's size.",
        "There: cut x along axis 1 into one contiguous part a rank, dist.reduce_scatter. Back: dist.all_gather into a "
        "list, torch.cat along axis 1. Both with group=group.",
    ),
    further=True,
)
