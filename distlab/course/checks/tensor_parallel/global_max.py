"""The check of global_max: the largest logit of all ranks, at every place."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.tensor_parallel.common import (
    WORLDS,
    Groups,
    count,
    enter,
    in_own_group,
    in_words,
    members,
    misconceptions,
    random,
    refuse_whole,
    share_by_rank,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.watching.spans import span

NUM_IDS, PLACES = 7, (2, 3)


def all_logits(seed: int, shift: float) -> torch.Tensor:
    return 3 * random(seed, *PLACES, NUM_IDS) + shift


def driven(global_max: Callable, seed: int, shift: float, groups: Groups) -> dict:
    """On a rank: what it returns, whether that holds a graph, and whether the logits are as they were."""
    group, mine = enter(groups), share_by_rank(NUM_IDS, groups)[dist.get_rank()]
    logits = all_logits(seed, shift)[..., mine].clone().requires_grad_()
    before = logits.detach().clone()
    with span("forward"):
        top = global_max(logits) if group is None else global_max(logits, group)
    attached = isinstance(top, torch.Tensor) and top.requires_grad
    top = top.detach() if isinstance(top, torch.Tensor) else top
    return dict(top=top, attached=attached, kept=torch.equal(logits.detach(), before))


def check_global_max(learners: Callable, trial: Trial) -> str:
    """Tries ``global_max`` on logits around 0, and far below it."""
    _try(learners, trial, WORLDS[0], shift=0.0)
    for groups in WORLDS:
        _try(learners, trial, groups, shift=-50.0)
    return (
        "every rank has the largest logit of each place, of one number a place sent; on 1 to 3 ranks and in two groups"
    )


def _try(learners: Callable, trial: Trial, groups: Groups, shift: float) -> None:
    case = f"{in_words(groups)} and logits around {shift:g}"
    run = watch(trial, case, driven, learners, trial.seed, shift, groups, groups=groups, own_first="different shapes")
    in_own_group(case, run, groups)
    refuse_whole(f"{case}, messages", run, PLACES[0] * PLACES[1], "gathers")
    logits = all_logits(trial.seed, shift)
    own = [logits[..., part].amax(-1) for part in share_by_rank(NUM_IDS, groups)]
    want = [logits.amax(-1)] * len(own)
    beliefs = {
        "local": own,
        "sum": [sum(own[r] for r in group) for group in members(groups)],
        "everywhere": [logits.amax()] * len(own),
        "id": [logits.argmax(-1)] * len(own),
        "keepdim": [logits.amax(-1, keepdim=True)] * len(own),
        "from-zero": [logits.amax(-1).clamp(min=0)] * len(own),
    }
    compare(case, [one["top"] for one in run.values], want, beliefs)
    if any(one["attached"] for one in run.values):
        raise Wrong(case, "expected requires_grad False, got True", ("attached",))
    if not all(one["kept"] for one in run.values):
        raise Wrong(case, "expected the logits as they were, got others", ("writes",))
    count(f"{case}, messages", run, "forward", {"all_reduce": 1}, PLACES[0] * PLACES[1])


GLOBAL_MAX = Exercise(
    "global_max",
    check_global_max,
    misconceptions=misconceptions(
        local="Each rank has the maximum of its own logits; another rank may hold a larger one.",
        sum="The ranks' maxima were added up: dist.all_reduce sums unless it is told op=dist.ReduceOp.MAX.",
        everywhere="This is one maximum for all places; each place needs its own, of shape (B, T).",
        id="This is the id of the largest logit; the logit itself is asked for.",
        keepdim="The last axis is still there, with a single number in it: one number a place has the shape (B, T). "
        "Leave keepdim out, or squeeze(-1).",
        own_first="Each rank sent as many numbers as it has ids, and the shares differ. First the maximum of your own "
        "logits along the last axis, then that of the ranks.",
        from_zero="Where all logits are negative it gives 0: start from the logits, not from zeros.",
        attached="The maximum still holds its graph. It only moves all logits by the same amount, and that changes no "
        "loss: detach it, since autograd cannot follow dist.all_reduce.",
        gathers="All logits were sent: each rank is to send one number a place, the maximum of its own.",
        writes="The logits that it was given are changed.",
        world="The maximum runs over all ranks, and not over the group: hand group on to dist.all_reduce.",
    ),
    hints=(
        "Each rank finds the maximum of its own logits along the last axis; the maximum of the maxima is the whole "
        "one.",
        "top_BT = logits_BTv.detach().amax(dim=-1), then dist.all_reduce(top_BT, op=dist.ReduceOp.MAX, group=group).",
    ),
)
