"""The check of gather_sequence (further): an all-gather of places forward, a reduce-scatter backward."""

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
    whole_from,
)
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial


def check_gather_sequence(learners: Callable, trial: Trial) -> str:
    """Tries ``gather_sequence`` both ways."""
    for groups in WORLDS:
        case, ranks, size = in_words(groups), sum(map(len, groups)), len(groups[0])
        run = run_on(trial, case, learners, groups, gathers=True)
        whole, totals = random(trial.seed, *WHOLE), sums(trial.seed + 1, groups)
        mine = [own(trial.seed + 1, rank) for rank in range(ranks)]
        grad_x = [parts_of(total, groups)[rank] for rank, total in enumerate(totals)]
        parts = parts_of(whole, groups)
        wrong_y = {
            "no-gather": parts,
            "other-axis": [torch.cat(parts[:size], dim=0)] * ranks,
            "last-axis": [torch.cat(parts[:size], dim=-1)] * ranks,
        }
        wrong_grad = {
            "own-part": [parts_of(gradient, groups)[rank] for rank, gradient in enumerate(mine)],
            "mean": [gradient / size for gradient in grad_x],
            "cut-off": [torch.zeros_like(gradient) for gradient in grad_x],
        }
        y = whole_from(parts, groups)
        compare_both(case, run.values, y, grad_x, wrong_y, wrong_grad, ranks=size)
        check_messages(case, run, groups, {"forward": "all_gather", "backward": "reduce_scatter"})
    return (
        "every rank has all places, and the gradient of its own, summed over the group: an all-gather forward, a "
        "reduce-scatter backward; on 1 to 3 ranks and in two groups"
    )


GATHER_SEQUENCE = Exercise(
    "gather_sequence",
    check_gather_sequence,
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
