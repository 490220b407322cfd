"""The checks of global_max, target_logit and vocab_parallel_cross_entropy: a loss, and nobody holds all logits."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from distlab.course.checks.tensor_parallel.common import (
    GROUPS,
    NONE,
    SKIPS,
    UNTRACKED,
    WORLDS,
    Groups,
    Seat,
    budget,
    case,
    drawn,
    own_group,
    own_seat,
    seats,
    size_of_groups,
)
from distlab.course.checks.tensor_parallel.vocabulary import (
    NUM_IDS,
    NUM_PLACES,
    ONE_SIDED,
    PLACES,
    OfLogits,
    ids_of,
    in_parts,
    logits_of,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.ranks.watching.spans import span


def _drive_max(lab, job: Job) -> dict:
    """On a rank: the maxima, and whether they hold a graph."""
    seat = own_seat(job)
    logits = logits_of(job, seat.group, job["shift"])[..., seat.part(NUM_IDS)].clone().requires_grad_()
    with span("forward"):
        top = call(lab.global_max, logits, own_group(job))
    is_tensor = isinstance(top, torch.Tensor)
    return {"the maxima": top.detach() if is_tensor else top, "their requires_grad": is_tensor and top.requires_grad}


def _expect_max(job: Job, came: list[dict]) -> list[dict]:
    """The largest of all logits of a rank's group, at each place."""
    tops = [logits_of(job, seat.group, job["shift"]).amax(-1) for seat in seats(job)]
    return [{"the maxima": top, "their requires_grad": False} for top in tops]


GLOBAL_MAX = Exercise(
    "global_max",
    Experiment(
        [
            case(groups, f" and logits around {s:g}", shift=s)
            for groups, s in ((WORLDS[0], 0.0), *((w, -50.0) for w in WORLDS))
        ],
        _drive_max,
        _expect_max,
        judge=lambda job, outcome: budget(job, outcome, max(2, len(job["groups"][0])) * NUM_PLACES),
        tells=GROUPS,
        fields=size_of_groups,
        holds="every rank has the largest logit of each place, of one number a place sent; on 1 to 3 ranks and in two "
        "groups",
    ),
    misconceptions=misconceptions(
        local="Each rank has the maximum of its own logits; another rank may hold a larger one.",
        sum="The ranks' maxima were added up: dist.all_reduce sums unless it is told op=dist.ReduceOp.MAX.",
        everywhere="This is one maximum for all places; each place needs its own, of shape (B, T).",
        none=NONE,
        first_only="Only the first rank of the group has the maximum, and all ranks go on from it: that is an "
        "all-reduce.",
        axis="The maximum runs over another axis than the ids: they are the last one, dim=-1, and one number is left "
        "of each place.",
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


def _logits(job: Job, seat: Seat) -> tuple[tuple, torch.Tensor]:
    """This rank's logits and the targets, and a gradient for each place."""
    logits = logits_of(job, seat.group, job["shift"])[..., seat.part(NUM_IDS)]
    return (logits, ids_of(job, seat.group), NUM_IDS), drawn(job, seat.group, 1, *PLACES)


@lru_cache(maxsize=4)
def _picked(job: Job, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits_of(job, group, job["shift"]).requires_grad_()
    picked = logits.gather(-1, ids_of(job, group).unsqueeze(-1)).squeeze(-1)
    picked.backward(drawn(job, group, 1, *PLACES))
    return picked.detach(), logits.grad


_TARGET = OfLogits(
    "target_logit",
    _logits,
    lambda job, seat: in_parts(*_picked(job, seat.group), seat),
    forward=1,
    names=("the targets' logits", "the logits"),
)


def _drive(lab, job: Job) -> dict:
    return (_TARGET if lab.name == _TARGET.name else _LOSS).drive(lab, job)


TARGET_LOGIT = Exercise(
    "target_logit",
    _TARGET.experiment(
        _drive,
        [case(groups, f" and {NUM_IDS} ids", only=None, shift=0.0) for groups in WORLDS]
        + [case(WORLDS[0], f" and targets {words}", only=rank, shift=0.0) for rank, words in ONE_SIDED],
        "every rank has the target's logit at each place, and its gradient reaches the rank that holds it, with "
        "one number a place sent; on 1 to 3 ranks and in two groups, and with all targets on one rank",
    ),
    misconceptions=misconceptions(
        foreign="A target that belongs to another rank was looked up here, where there is no such logit. Make it a "
        "local id that exists, and mask what you find.",
        unmasked="A target that belongs to another rank brings a logit of this rank's. Foreign targets must bring 0: "
        "multiply by the mask.",
        equal_shares="The ids of rank r were taken to begin at r times the ids that it holds. Where the ids don't "
        "divide, ranks hold unequal numbers of them: share_of says which are this rank's.",
        no_sum="Each rank knows the logits of its own targets and has 0 for the others: reduce_from_group adds them "
        "up.",
        both_ways="The gradient is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to the logits: they were detached, or the sum is not made by "
        "reduce_from_group.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        skips=SKIPS.replace("{what}", "targets"),
        gathers="All logits were sent: one rank holds the target's, and one number a place is enough.",
        one_hot="A tensor as large as all logits of all ranks was made here. gather needs none; a one-hot of the local "
        "ids, as wide as this rank's share, would do as well.",
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


def _case(groups: Groups, shift: float = 0.0, only: int | None = None, words: str = "") -> Case:
    return case(groups, words or f" and logits around {shift:,.0f}", shift=shift, only=only)


@lru_cache(maxsize=4)
def _whole_loss(job: Job, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits_of(job, group, job["shift"]).requires_grad_()
    loss = F.cross_entropy(logits.flatten(0, 1), ids_of(job, group).flatten())
    loss.backward()
    return loss.detach(), logits.grad


_LOSS = OfLogits(
    "vocab_parallel_cross_entropy",
    lambda job, seat: (_logits(job, seat)[0], torch.ones((), dtype=job.dtype)),
    lambda job, seat: in_parts(*_whole_loss(job, seat.group), seat),
    forward=3,
    names=("the loss", "the logits"),
)

VOCAB_PARALLEL_CROSS_ENTROPY = Exercise(
    "vocab_parallel_cross_entropy",
    Experiment(
        [_case(WORLDS[0]), _case(WORLDS[0], 1000.0), *map(_case, WORLDS[1:])]
        + [_case(WORLDS[0], only=rank, words=f" and targets {words}") for rank, words in ONE_SIDED],
        _drive,
        _LOSS.expect,
        judge=_LOSS.judge,
        tells=GROUPS,
        fields=lambda job, _: {"ranks": len(job["groups"][0]), "places": NUM_PLACES},
        holds="loss and gradients are those of one process, also for logits around 1,000; three numbers a place are "
        "sent, and no rank ever held all logits; on 1 to 3 ranks and in two groups, and with all targets on one rank",
    ),
    misconceptions=misconceptions(
        local_softmax="Each rank took the softmax over its own logits only: the sum of exponentials runs over the "
        "vocabulary of all ranks.",
        overflow="It is infinite or not a number: the exponential of a large logit overflows. Subtract the largest "
        "logit of all ranks before exp, and add it again after log.",
        own_max="Each rank subtracted its own maximum, so the sums of the ranks are of different scales: all must "
        "subtract the same, global_max.",
        max_lost="The maximum was subtracted before exp and not added again after log.",
        sum="The loss is the sum over the {places} places; their mean is asked for.",
        ranks_summed="The losses of {ranks} ranks were added up; each of them has the whole loss already.",
        no_log="The logarithm of the sum is missing.",
        axis="The exponentials are summed over another axis than the ids: they are the last one, dim=-1, and one "
        "number is left of each place.",
        foreign="A target that belongs to another rank was looked up here: target_logit knows what to do.",
        both_ways="The gradient is added up on the way back, {ranks} times too large or sent for nothing: each rank "
        "has the whole loss, and needs the gradient of its own logits only.",
        cut_off="No gradient comes back to the logits: something was detached, or a sum is not made by "
        "reduce_from_group.",
        untracked=f"{UNTRACKED}Use reduce_from_group for the sum of exponentials too.",
        skips=SKIPS.replace("{what}", "targets"),
        gathers="A rank held all logits at once. The loss needs three numbers a place from each rank: its maximum, its "
        "sum of exponentials, and the target's logit.",
        writes="The logits that it was given are changed.",
        world="A collective runs over all ranks, and not over the group: hand group on to all that is called.",
    ),
    hints=(
        "At one place the loss is log Σ exp(logit − top) + top − target, with top from global_max and target from "
        "target_logit. Which sum runs over all ranks?",
        "total_BT = reduce_from_group((logits_BTv - top_BT.unsqueeze(-1)).exp().sum(-1), group), and the mean of "
        "total_BT.log() + top_BT - target_logit(…).",
    ),
    uses=("reduce_from_group", "global_max", "target_logit"),
)
