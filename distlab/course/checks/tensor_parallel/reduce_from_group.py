"""The check of reduce_from_group: a sum over the group forward, nothing backward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.collectives.coding import compare_coded
from distlab.course.checks.tensor_parallel.common import (
    UNTRACKED,
    WORLDS,
    in_words,
    members,
    misconceptions,
    num_ranks,
    refuse_untracked,
    world,
)
from distlab.course.checks.tensor_parallel.copy_to_group import (
    SHAPE,
    brought,
    refuse_nothing_back,
    summed,
    there_and_back,
)
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial


def check_reduce_from_group(learners: Callable, trial: Trial) -> str:
    """Tries ``reduce_from_group`` in the world and in two groups; all ranks have the same gradient of y."""
    for groups in WORLDS:
        case, ranks = in_words(groups), num_ranks(groups)
        found = trial.run(case, there_and_back, learners, groups, 0, ranks=ranks)
        if not all(one["kept"][0] for one in found):
            raise Wrong(case, "expected x as it was, got another", ("in-place",))
        sums = [summed(group) for group in members(groups)]
        beliefs = {
            "no-sum": [brought(r) for r in range(ranks)],
            "mean": [total / len(group) for total, group in zip(sums, members(groups))],
            "world": [summed(group) for group in members(world(groups))],
        }
        y = [one["y"] for one in found]
        compare_coded(f"{case}, y", y, sums, beliefs, "in y", ranks=len(groups[0]))
        refuse_nothing_back(case, found)
        beliefs = {
            "both-ways": [brought(0) * len(group) for group in members(groups)],
            "cut-off": [torch.zeros(SHAPE, dtype=torch.float64)] * ranks,
            "divided": [brought(0) / len(group) for group in members(groups)],
        }
        grad_x = [one["grad_x"] for one in found]
        alike = f"{case} that all have the same gradient of y, the gradient of x"
        compare_coded(alike, grad_x, [brought(0)] * ranks, beliefs, "in it", ranks=len(groups[0]))
        refuse_untracked(case, found)
    return "y is the sum over the group, and the gradient passes as it is; on 1 to 3 ranks and in two groups"


REDUCE_FROM_GROUP = Exercise(
    "reduce_from_group",
    check_reduce_from_group,
    misconceptions=misconceptions(
        no_sum="Each rank has its own x back: it holds a part of every sum, and the parts of all ranks are to be added "
        "up forward.",
        mean="y is the mean over {ranks} ranks; the whole is the sum of its parts.",
        in_place="dist.all_reduce works in place, and it was given x, which is not yours to change: give it a clone.",
        both_ways="The gradient is added up on the way back too, so everything before this point gets {ranks} times "
        "its gradient. All ranks hold the whole gradient of y already: it passes as it is.",
        cut_off="No gradient comes back: y has lost its way to x. Return what ThereAndBack.apply returns.",
        none_back="The function for the way back returns None: return the gradient that it was given, as it is.",
        untracked=f"{UNTRACKED}Give it to ThereAndBack, with both ways.",
        divided="The gradient is divided by {ranks}. y is a plain sum, and the gradient of a sum reaches each of its "
        "parts whole.",
        world="The sum runs over all ranks, and not over the group: hand group on to dist.all_reduce.",
    ),
    hints=(
        "It is copy_to_group read backwards: the sum there, the gradient as it is back.",
        "def sum_up(x): clone it, dist.all_reduce the clone with group=group, return it. Then return "
        "ThereAndBack.apply(x, sum_up, lambda grad_y: grad_y).",
    ),
)
