"""The check of vocab_parallel_cross_entropy: the loss of one process, and no rank ever holds all logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.course.checks.tensor_parallel.common import (
    NEVER_JOINED,
    SKIPS,
    UNTRACKED,
    WORLDS,
    Groups,
    enter,
    gradient_of,
    in_own_group,
    in_words,
    members,
    messages_in,
    misconceptions,
    random,
    refuse_untracked,
    refuse_whole,
    share_by_rank,
    untracked,
    watch,
)
from distlab.course.checks.tensor_parallel.vocab_parallel_embedding import NUM_IDS, OUTSIDE, PLACES, all_ids, one_sided
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.watching.spans import span

NUM_PLACES = PLACES[0] * PLACES[1]


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operator makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def all_logits(seed: int, shift: float) -> torch.Tensor:
    return 3 * random(seed, *PLACES, NUM_IDS) + shift


def driven(cross_entropy: Callable, seed: int, shift: float, groups: Groups, only: list[int] | None = None) -> dict:
    """On a rank: the loss, the gradient of this rank's logits, and the elements of the largest tensor on the way."""
    group, mine = enter(groups), share_by_rank(NUM_IDS, groups)[dist.get_rank()]
    logits = all_logits(seed, shift)[..., mine].clone().requires_grad_()
    before, targets = logits.detach().clone(), all_ids(seed, only)
    with untracked() as lost:
        with Largest() as largest, span("forward"):
            loss = cross_entropy(logits, targets, NUM_IDS, *([] if group is None else [group]))
        came = loss.detach().clone() if isinstance(loss, torch.Tensor) else loss
        with span("backward"):
            fits = isinstance(loss, torch.Tensor) and loss.shape == ()
            grad = gradient_of(loss, logits, torch.ones_like(loss)) if fits else torch.zeros_like(logits)
    kept = torch.equal(logits.detach(), before)
    return dict(loss=came, grad=grad.clone(), largest=largest.elements, kept=kept, untracked=any(lost))


def check_vocab_parallel_cross_entropy(learners: Callable, trial: Trial) -> str:
    """Tries the loss on small and on large logits, against that of all logits in one place."""
    for groups in WORLDS:
        _try(learners, trial, groups, shift=0.0)
        if groups is WORLDS[0]:
            _try(learners, trial, groups, shift=1000.0)
    for words, only in one_sided():
        _try(learners, trial, [[0, 1]], shift=0.0, words=f" and targets {words}", only=only, skips=NEVER_JOINED)
    return (
        "loss and gradients are those of one process, also for logits around 1,000; no message holds more than a "
        "number a place, and no rank ever held all logits; on 1 to 3 ranks and in two groups, and "
        "with all targets on one rank"
    )


def _try(
    learners: Callable, trial: Trial, groups: Groups, shift: float, words: str = "", only: list[int] | None = None,
    **because: str,
) -> None:  # fmt: skip
    case = f"{in_words(groups)}{words or f' and logits around {shift:,.0f}'}"
    arguments = learners, trial.seed, shift, groups, only
    run = watch(trial, case, driven, *arguments, groups=groups, foreign=OUTSIDE, **because)
    in_own_group(case, run, groups)
    refuse_whole(f"{case}, messages", run, 3 * NUM_PLACES, "gathers")
    _refuse_all_logits(case, run.values, len(groups[0]))
    logits, targets = all_logits(trial.seed, shift).requires_grad_(), all_ids(trial.seed, only)
    want = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    want.backward()
    _compare_losses(case, run.values, want.detach(), logits.detach(), targets, groups)
    mine, size = share_by_rank(NUM_IDS, groups), len(groups[0])
    right = [logits.grad[..., own] for own in mine]
    beliefs = {
        "both-ways": [size * gradient for gradient in right],
        "cut-off": [torch.zeros_like(gradient) for gradient in right],
    }
    got = [one["grad"] for one in run.values]
    compare(f"{case}, the gradient of the logits", got, right, beliefs, ranks=size)
    if not all(one["kept"] for one in run.values):
        raise Wrong(case, "expected the logits as they were, got others", ("writes",))
    if messages := messages_in(run.recording, 0, "backward"):
        raise Wrong(f"{case}, messages backward", f"expected none, got {messages[0].kind}", ("both-ways",), ranks=size)
    refuse_untracked(case, run.values)


def _refuse_all_logits(case: str, found: list[dict], size: int) -> None:
    """Raises Wrong if a rank ever held as many numbers as there are logits."""
    whole = NUM_PLACES * NUM_IDS
    for rank, one in enumerate(found):
        if size > 1 and one["largest"] >= whole:
            most = NUM_PLACES * -(-NUM_IDS // size)
            detail = f"rank {rank}: expected tensors of at most {most} elements, got one of {one['largest']}"
            raise Wrong(f"{case}, memory", detail, ("gathers",))


def _compare_losses(case: str, found: list[dict], want: torch.Tensor, logits, targets, groups: Groups) -> None:
    got, size, together = [one["loss"] for one in found], len(groups[0]), members(groups)
    finite = [isinstance(loss, torch.Tensor) and bool(loss.isfinite().all()) for loss in got]
    if not all(finite):
        rank = finite.index(False)
        raise Wrong(f"{case}, the loss", f"rank {rank}: expected {want:.6g}, got {got[rank]}", ("overflow",))
    mine = share_by_rank(NUM_IDS, groups)
    parts = [logits[..., own] for own in mine]
    tops, top = [part.amax(-1) for part in parts], logits.amax(-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    own_sums = [(part - t.unsqueeze(-1)).exp().sum(-1) for part, t in zip(parts, tops)]
    mixed = [sum(own_sums[r] for r in group) for group in together]
    beliefs = {
        "local-softmax": [(part.logsumexp(-1) - picked).mean() for part in parts],
        "own-max": [(total.log() + t - picked).mean() for total, t in zip(mixed, tops)],
        "mixed-max": [(total.log() + top - picked).mean() for total in mixed],
        "max-lost": [want - top.mean()] * len(got),
        "sum": [want * NUM_PLACES] * len(got),
        "ranks-summed": [want * size] * len(got),
        "no-log": [((logits - top.unsqueeze(-1)).exp().sum(-1) + top - picked).mean()] * len(got),
    }
    beliefs["own-max"] = beliefs.pop("own-max") if size > 1 else [want] * len(got)
    values = beliefs.pop("mixed-max")
    if all(g.shape == v.shape and torch.allclose(g, v) for g, v in zip(got, values)):
        beliefs["own-max"] = values
    compare(f"{case}, the loss", got, [want] * len(got), beliefs, ranks=size, places=NUM_PLACES)


VOCAB_PARALLEL_CROSS_ENTROPY = Exercise(
    "vocab_parallel_cross_entropy",
    check_vocab_parallel_cross_entropy,
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
        world="A sum runs over all ranks, and not over the group: hand group on.",
    ),
    hints=(
        "At one place the loss is log Σ exp(logit − top) + top − target, with top from global_max and target from "
        "target_logit. Which sum runs over all ranks?",
        "total_BT = reduce_from_group((logits_BTv - top_BT.unsqueeze(-1)).exp().sum(-1), group), and the mean of "
        "total_BT.log() + top_BT - target_logit(…).",
    ),
    uses=("reduce_from_group", "global_max", "target_logit"),
)
