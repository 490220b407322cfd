"""The check of reduce_scatter_sequence (further): sums of places forward, an all-gather backward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.tensor_parallel.common import in_words, misconceptions, random
from distlab.course.checks.tensor_parallel.sequence import (
    WHOLE,
    WORLDS,
    check_messages,
    compare_both,
    own,
    parts_of,
    run_on,
    sums,
    torn,
    whole_from,
)
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def check_reduce_scatter_sequence(learners: Callable, trial: Trial) -> str:
    """Tries ``reduce_scatter_sequence`` both ways, then on places that can't be shared out."""
    for groups in WORLDS:
        case, ranks, size = in_words(groups), sum(map(len, groups)), len(groups[0])
        run = run_on(trial, case, learners, groups, gathers=False)
        part, mine = parts_of(random(trial.seed, *WHOLE), groups), [own(trial.seed + 1, rank) for rank in range(ranks)]
        totals = sums(trial.seed + 1, groups)
        y = [parts_of(total, groups)[rank] for rank, total in enumerate(totals)]
        wrong_y = {
            "no-sum": [parts_of(x, groups)[rank] for rank, x in enumerate(mine)],
            "no-scatter": totals,
            "mean": [one / size for one in y],
            "other-axis": [
                total.chunk(size, dim=0)[min(rank % size, WHOLE[0] - 1)] for rank, total in enumerate(totals)
            ],
        }
        wrong_grad = {
            "own-part": [_alone(one, rank % size, size) for rank, one in enumerate(part)],
            "cut-off": [torch.zeros(WHOLE, dtype=torch.float64)] * ranks,
            "both-ways": [size * whole for whole in whole_from(part, groups)],
        }
        compare_both(case, run.values, y, whole_from(part, groups), wrong_y, wrong_grad, ranks=size)
        check_messages(case, run, groups, {"forward": "reduce_scatter", "backward": "all_gather"})
    _refuses(learners, trial)
    return (
        "each rank has the sums of its own places, and the gradient of all: a reduce-scatter forward, an all-gather "
        "backward; places that can't be shared out are refused by name; on 1 to 3 ranks and in two groups"
    )


def _alone(part: torch.Tensor, place: int, size: int) -> torch.Tensor:
    """A rank's part among zeros."""
    return torch.cat([part if i == place else torch.zeros_like(part) for i in range(size)], dim=1)


def _refuses(learners: Callable, trial: Trial) -> None:
    case = "with 2 ranks and 5 places"
    try:
        answers = trial.run(case, torn, learners, ranks=2)
    except RankFailed as failed:
        raise failed.because("not-refused") from None
    for rank, said in enumerate(answers):
        if "5" not in said or "2" not in said:
            raise Wrong(case, f'rank {rank}: expected a ValueError that names 5 and 2, got "{said}"', ("not-refused",))


REDUCE_SCATTER_SEQUENCE = Exercise(
    "reduce_scatter_sequence",
    check_reduce_scatter_sequence,
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
