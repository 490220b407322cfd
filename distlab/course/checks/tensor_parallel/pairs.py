"""The checks of copy_to_group and reduce_from_group: a sum over the group on one way, nothing on the other."""

from __future__ import annotations

import torch

from distlab.course.checks.tensor_parallel.common import NONE, UNTRACKED, WORLDS, Seat, Ways, case, drawn
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.fixtures import coded, misconceptions

SHAPE, NUMBERS = (2, 3, 5), 2 * 3 * 5


def brought(job: Job, rank: int) -> torch.Tensor:
    """What a rank brings to a sum: a digit of any sum says whose numbers are in it."""
    return coded([torch.Size(SHAPE)], rank, job.dtype)[0]


def summed(job: Job, seat: Seat) -> torch.Tensor:
    """The sum of what a rank's group brings."""
    return sum(brought(job, rank) for rank in seat.ranks)


def alike(job: Job, seat: Seat) -> torch.Tensor:
    """What all ranks of a group hold."""
    return drawn(job, seat.group, 0, *SHAPE)


_F = Ways(
    "copy_to_group",
    lambda job, seat: ((alike(job, seat),), brought(job, seat.rank)),
    lambda job, seat: (alike(job, seat), summed(job, seat)),
    backward=2 * NUMBERS,
)

_G = Ways(
    "reduce_from_group",
    lambda job, seat: ((brought(job, seat.rank),), alike(job, seat)),
    lambda job, seat: (summed(job, seat), alike(job, seat)),
    forward=2 * NUMBERS,
)


def _drive(lab, job: Job) -> dict:
    return (_F if lab.name == _F.name else _G).drive(lab, job)


COPY_TO_GROUP = Exercise(
    "copy_to_group",
    _F.experiment(
        _drive,
        [case(groups) for groups in WORLDS],
        "y is x, and the gradient of x is the sum of the group's gradients of y; on 1 to 3 ranks and in two groups",
    ),
    misconceptions=misconceptions(
        sums_forward="The tensors are added up forward. Every rank holds the same x already: forward there is nothing "
        "to do, and backward there is a sum.",
        one_way="Each rank keeps its own gradient. It knows only what its own part of the work wants of x: the parts "
        "of all ranks are to be added up on the way back.",
        mean="The gradient is the mean over {ranks} ranks. Each rank's is a part of the whole one: add them up, and "
        "divide by nothing.",
        in_place="dist.all_reduce works in place, and it was given the gradient of y, which is not yours to change: "
        "give it a clone.",
        cut_off="No gradient comes back: y has lost its way to x. Return what ThereAndBack.apply returns.",
        none_back="The function for the way back returns None. dist.all_reduce works in place and returns nothing: "
        "return the tensor that it was given.",
        hook="register_hook refuses a tensor that needs no gradient, and x needs none in evaluation or in a first "
        "layer: register it only if y.requires_grad.",
        rank_0="Every rank has the gradient of the first rank; those of the others are lost.",
        first_only="Only the first rank of the group has the sum. All ranks hold x, and all go on backward from here: "
        "each of them needs it, which is an all-reduce.",
        gathers="The sum is right, and every rank was sent all {ranks} gradients to add them up by itself: an "
        "all-reduce sends parts of sums, about two gradients' worth however many ranks there are.",
        world="The sum runs over all ranks, and not over the group: hand group on to dist.all_reduce.",
    ),
    hints=(
        "ThereAndBack.apply(x, there, back) takes two functions of one tensor. There: x as it is. Back: the sum of the "
        "gradients of all ranks of the group.",
        "Inside copy_to_group write def sum_up(grad_y): clone it, dist.all_reduce the clone with group=group, return "
        "it. Then return ThereAndBack.apply(x, lambda x: x, sum_up).",
    ),
)


REDUCE_FROM_GROUP = Exercise(
    "reduce_from_group",
    _G.experiment(
        _drive,
        [case(groups) for groups in WORLDS],
        "y is the sum over the group, and the gradient passes as it is; on 1 to 3 ranks and in two groups",
    ),
    misconceptions=misconceptions(
        no_sum="Each rank has its own x back: it holds a part of every sum, and the parts of all ranks are to be added "
        "up forward.",
        mean="y is the mean over {ranks} ranks; the whole is the sum of its parts.",
        none=NONE,
        in_place="dist.all_reduce works in place, and it was given x, which is not yours to change: give it a clone.",
        both_ways="The gradient is added up on the way back too, so everything before this point gets {ranks} times "
        "its gradient. All ranks hold the whole gradient of y already: it passes as it is.",
        cut_off="No gradient comes back: y has lost its way to x. Return what ThereAndBack.apply returns.",
        none_back="The function for the way back returns None: return the gradient that it was given, as it is.",
        untracked=f"{UNTRACKED}Give it to ThereAndBack, with both ways.",
        divided="The gradient is divided by {ranks}. y is a plain sum, and the gradient of a sum reaches each of its "
        "parts whole.",
        first_only="Only the first rank of the group has the sum, and all ranks go on from it: that is an all-reduce.",
        gathers="The sum is right, and every rank was sent all {ranks} tensors to add them up by itself: an all-reduce "
        "sends parts of sums, about two tensors' worth however many ranks there are.",
        world="The sum runs over all ranks, and not over the group: hand group on to dist.all_reduce.",
    ),
    hints=(
        "It is copy_to_group read backwards: the sum there, the gradient as it is back.",
        "def sum_up(x): clone it, dist.all_reduce the clone with group=group, return it. Then return "
        "ThereAndBack.apply(x, sum_up, lambda grad_y: grad_y).",
    ),
)
