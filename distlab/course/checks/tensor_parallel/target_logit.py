"""The check of target_logit: the logit of the target, from the one rank that holds it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.tensor_parallel.common import (
    NEVER_JOINED,
    SKIPS,
    UNTRACKED,
    WORLDS,
    Groups,
    count,
    enter,
    gradient_of,
    in_own_group,
    in_words,
    members,
    misconceptions,
    random,
    refuse_untracked,
    refuse_whole,
    share_by_rank,
    untracked,
    watch,
)
from distlab.course.checks.tensor_parallel.vocab_parallel_embedding import (
    NUM_IDS,
    OUTSIDE,
    PLACES,
    all_ids,
    local_ids,
    one_sided,
    owner_of,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.watching.spans import span


def driven(target_logit: Callable, seed: int, groups: Groups, only: list[int] | None = None) -> dict:
    """On a rank: the targets' logits, the gradient of this rank's logits, and whether those are as they were."""
    group, mine = enter(groups), share_by_rank(NUM_IDS, groups)[dist.get_rank()]
    logits = random(seed, *PLACES, NUM_IDS)[..., mine].clone().requires_grad_()
    before, targets = logits.detach().clone(), all_ids(seed, only)
    with untracked() as lost:
        with span("forward"):
            logit = target_logit(logits, targets, NUM_IDS, *([] if group is None else [group]))
        came = logit.detach().clone()
        with span("backward"):
            grad_y = random(seed + 1, *PLACES)
            grad = gradient_of(logit, logits, grad_y) if logit.shape == PLACES else torch.zeros_like(logits)
    kept = torch.equal(logits.detach(), before) and torch.equal(targets, all_ids(seed, only))
    return dict(logit=came, grad=grad.clone(), kept=kept, untracked=any(lost))


def check_target_logit(learners: Callable, trial: Trial) -> str:
    """Tries ``target_logit`` against looking it up in all logits."""
    for groups in WORLDS:
        _try(learners, trial, f"{in_words(groups)} and {NUM_IDS} ids", groups)
    for words, only in one_sided():
        _try(learners, trial, f"with 2 ranks and targets {words}", [[0, 1]], only, skips=NEVER_JOINED)
    return (
        "every rank has the target's logit at each place, and its gradient reaches the rank that holds it, with one "
        "number a place sent; on 1 to 3 ranks and in two groups, and with all targets on one rank"
    )


def _try(learners: Callable, trial: Trial, case: str, groups: Groups, only: list[int] | None = None, **because) -> None:
    run = watch(trial, case, driven, learners, trial.seed, groups, only, groups=groups, foreign=OUTSIDE, **because)
    refuse_whole(f"{case}, messages", run, PLACES[0] * PLACES[1], "gathers")
    in_own_group(case, run, groups)
    _compare(case, run.values, groups, trial.seed, only)
    count(f"{case}, messages", run, "forward", {"all_reduce": 1}, PLACES[0] * PLACES[1])
    count(f"{case}, messages", run, "backward", {}, 0)
    refuse_untracked(case, run.values)


def _looked_up(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def _compare(case: str, found: list[dict], groups: Groups, seed: int, only: list[int] | None) -> None:
    logits, targets = random(seed, *PLACES, NUM_IDS).requires_grad_(), all_ids(seed, only)
    logit = _looked_up(logits, targets)
    logit.backward(random(seed + 1, *PLACES))
    mine, ranks, size = share_by_rank(NUM_IDS, groups), len(found), len(groups[0])
    plain, together = logits.detach(), members(groups)
    is_mine = [(targets >= own[0]) & (targets <= own[-1]) for own in mine]
    beliefs = {"no-sum": [logit.detach() * own for own in is_mine]}
    got = [one["logit"] for one in found]
    for way in ("zero", "clamp", "modulo"):
        parts = [_looked_up(plain[..., own], local_ids(targets, own)[way]) for own in mine]
        sums = [sum(parts[r] for r in group) for group in together]
        for id, values in (("unmasked", sums), ("unmasked", parts)):
            if all(g.shape == v.shape and torch.allclose(g, v) for g, v in zip(got, values)) and size > 1:
                beliefs[id] = values
    right = [logit.detach()] * ranks
    try:
        compare(f"{case}, the target's logits", got, right, beliefs, ranks=size)
    except Wrong as wrong:
        detail = wrong.detail + owner_of(got, right, targets, mine)
        raise Wrong(wrong.case, detail, wrong.believed, **wrong.fields) from None
    want = [logits.grad[..., own] for own in mine]
    beliefs = {"both-ways": [size * one for one in want], "cut-off": [torch.zeros_like(one) for one in want]}
    compare(f"{case}, the gradient of the logits", [one["grad"] for one in found], want, beliefs, ranks=size)
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected logits and targets as they were, got others", ("writes",))


TARGET_LOGIT = Exercise(
    "target_logit",
    check_target_logit,
    misconceptions=misconceptions(
        foreign="A target that belongs to another rank was looked up here, where there is no such logit. Make it a "
        "local id that exists, and mask what you find.",
        unmasked="A target that belongs to another rank brings a logit of this rank's. Foreign targets must bring 0: "
        "multiply by the mask.",
        no_sum="Each rank knows the logits of its own targets and has 0 for the others: reduce_from_group adds them "
        "up.",
        both_ways="The gradient is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to the logits: they were detached, or the sum is not made by "
        "reduce_from_group.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        skips=SKIPS.replace("{what}", "targets"),
        gathers="All logits were sent: one rank holds the target's, and one number a place is enough.",
        writes="It changed the logits or the targets that it was given.",
        world="The sum runs over all ranks, and not over the group: hand group on.",
    ),
    hints=(
        "The mask is that of the embedding. logits.gather(-1, local.unsqueeze(-1)).squeeze(-1) picks one logit at each "
        "place; local must name one that is there, also where the target is foreign.",
        "local_BT = (targets_BT - mine.start) * is_mine_BT; pick, multiply by is_mine_BT, and hand it to "
        "reduce_from_group.",
    ),
    uses=("reduce_from_group",),
)
