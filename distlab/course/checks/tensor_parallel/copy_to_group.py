"""The check of copy_to_group: nothing forward, a sum over the group backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded
from distlab.course.checks.tensor_parallel.common import (
    WORLDS,
    Groups,
    enter,
    gradient_of,
    in_words,
    members,
    misconceptions,
    num_ranks,
    untracked,
    world,
)
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

SHAPE = 2, 3


def brought(rank: int) -> torch.Tensor:
    """What a rank brings: 16^rank and a fraction in every element, so that any sum says whose numbers are in it."""
    return coded(rank, 6).view(SHAPE)


def summed(ranks: list[int]) -> torch.Tensor:
    return coded_sum(ranks, 6).view(SHAPE)


def there_and_back(function: Callable, groups: Groups, from_rank: int | None) -> dict:
    """On a rank: what comes forward and back, and whether what went in is as it was.

    Each rank's gradient of y is its own, or that of ``from_rank`` on all.
    """
    group, rank = enter(groups), dist.get_rank()
    x, grad_y = brought(rank).requires_grad_(), brought(rank if from_rank is None else from_rank)
    given = grad_y.clone()
    with untracked() as lost:
        y = function(x) if group is None else function(x, group)
        came = y.detach().clone() if isinstance(y, torch.Tensor) else y
        grad_x = gradient_of(y, x, grad_y) if isinstance(y, torch.Tensor) else None
    nothing_back = isinstance(y, torch.Tensor) and y.requires_grad and x.grad is None
    kept = torch.equal(x.detach(), brought(rank)), torch.equal(grad_y, given)
    return dict(y=came, grad_x=grad_x, kept=kept, untracked=any(lost), nothing_back=nothing_back)


def refuse_nothing_back(case: str, found: list[dict]) -> None:
    """Raises Wrong if the way back is there, and returned None."""
    for rank, one in enumerate(found):
        if one["nothing_back"]:
            raise Wrong(f"{case}, backward", f"rank {rank}: expected a gradient from back, got None", ("none-back",))


def check_copy_to_group(learners: Callable, trial: Trial) -> str:
    """Tries ``copy_to_group`` in the world and in two groups."""
    for groups in WORLDS:
        case, ranks = in_words(groups), num_ranks(groups)
        found = trial.run(case, there_and_back, learners, groups, None, ranks=ranks)
        own, sums = [brought(r) for r in range(ranks)], [summed(group) for group in members(groups)]
        everywhere = [summed(group) for group in members(world(groups))]
        y = [one["y"] for one in found]
        compare_coded(f"{case}, y", y, own, {"sums-forward": sums}, "in y")
        if not all(one["kept"][1] for one in found):
            raise Wrong(f"{case}, backward", "expected the gradient of y as it was, got another", ("in-place",))
        refuse_nothing_back(case, found)
        beliefs = {
            "one-way": own,
            "mean": [total / len(group) for total, group in zip(sums, members(groups))],
            "cut-off": [torch.zeros(SHAPE, dtype=torch.float64)] * ranks,
            "rank-0": [own[group[0]] for group in members(groups)],
            "world": everywhere,
        }
        grad_x = [one["grad_x"] for one in found]
        first = [rank == group[0] for rank, group in enumerate(members(groups))]
        right = [torch.equal(got, total) for got, total in zip(grad_x, sums)]
        if right == first:  # what a reduce leaves on the others is anybody's guess
            beliefs["first-only"] = grad_x
        compare_coded(f"{case}, the gradient of x", grad_x, sums, beliefs, "in it", ranks=len(groups[0]))
        if not all(one["kept"][0] for one in found):
            raise Wrong(case, "expected x as it was, got another")
    return "y is x, and the gradient of x is the sum of the group's gradients of y; on 1 to 3 ranks and in two groups"


COPY_TO_GROUP = Exercise(
    "copy_to_group",
    check_copy_to_group,
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
        rank_0="Every rank has the gradient of the first rank; those of the others are lost.",
        first_only="Only the first rank of the group has the sum. All ranks hold x, and all go on backward from here: "
        "each of them needs it, which is an all-reduce.",
        world="The sum runs over all ranks, and not over the group: hand group on to dist.all_reduce.",
    ),
    hints=(
        "ThereAndBack.apply(x, there, back) takes two functions of one tensor. There: x as it is. Back: the sum of the "
        "gradients of all ranks of the group.",
        "Inside copy_to_group write def sum_up(grad_y): clone it, dist.all_reduce the clone with group=group, return "
        "it. Then return ThereAndBack.apply(x, lambda x: x, sum_up).",
    ),
)
