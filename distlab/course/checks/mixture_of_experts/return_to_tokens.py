"""The check of return_to_tokens: every row where it came from."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.all_to_all_autograd import pieces
from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, misconceptions, named
from distlab.course.checks.mixture_of_experts.way import CASES, Way, dispatched, in_words, returned, sizes, ways
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run

Counts = list[list[int]]
WIDTH = 2


def brought_home(return_to_tokens: Callable, way: list[Way], seed: int) -> dict:
    """On a rank: the rows that came home, and the gradient of what was sent."""
    rank = dist.get_rank()
    sends, receives, order = list(way[rank].sends), list(way[rank].receives), way[rank].order.clone()
    y = given(seed + rank, len(order), WIDTH).requires_grad_()
    out = return_to_tokens(y, (sends, receives, order))
    if not isinstance(out, torch.Tensor):
        return dict(out=out, gradient=torch.zeros_like(y), kept=True)
    if out.requires_grad:
        out.backward(given(seed + 100 + rank, *out.shape))
    gradient = torch.zeros_like(y) if y.grad is None else y.grad
    kept = torch.equal(y.detach(), given(seed + rank, *y.shape)) and torch.equal(order, way[rank].order)
    return dict(out=out.detach().clone(), gradient=gradient.clone(), kept=kept)


def check_return_to_tokens(learners: Callable, trial: Trial) -> str:
    """Tries ``return_to_tokens`` on the ways of 1 to 4 ranks."""
    for counts in CASES:
        case, ranks = in_words(counts), len(counts)
        try:
            run = trial.watch(case, brought_home, learners, ways(counts), trial.seed, ranks=ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, counts, trial.seed)
    return "every row and every gradient is where it came from, by one all-to-all each way; on 1 to 4 ranks"


_WORDS = {
    "wrong-sides": ("plit sizes", "different sizes in all_to_all", "doesn't match total dim 0 size"),
    "skips": ("without joining", "never joined", "returned without"),
}


def _compare(case: str, run: Run, counts: Counts, seed: int) -> None:
    ranks, right = len(counts), ways(counts)
    back = [list(column) for column in zip(*sizes(counts))]
    y = [given(seed + rank, len(way.order), WIDTH) for rank, way in enumerate(right)]
    want = returned(y, counts)
    beliefs = {
        "order-kept": pieces(y, back),
        "order-again": pieces([one[way.order] for one, way in zip(y, right)], back),
        "nothing-moved": y,
    }
    if all(len(way.order) == sum(way.sends) for way in right):
        beliefs["order-after"] = [one[way.order.argsort()] for one, way in zip(pieces(y, back), right)]
    beliefs = {id: wrong for id, wrong in beliefs.items() if difference_by_rank(wrong, want)}
    compare(f"{case}, the rows", [found["out"] for found in run.values], want, beliefs)
    gradients = dispatched([given(seed + 100 + rank, *one.shape) for rank, one in enumerate(want)], counts)
    beliefs = {
        "no-gradient": [torch.zeros_like(one) for one in y],
        "divided": [one / ranks for one in gradients],
    }
    compare(f"{case}, the gradient", [found["gradient"] for found in run.values], gradients, beliefs, ranks=ranks)
    keep_inputs(case, [found["kept"] for found in run.values], "what it was given")
    for rank in range(ranks):
        kinds = [m.kind for m in run.recording.messages(rank)]
        if kinds != ["all_to_all"] * 2:
            detail = f"rank {rank}: expected two all_to_all, forward and backward, got {', '.join(kinds) or 'none'}"
            raise Wrong(case, detail, ("more-messages",) if len(kinds) > 2 else ())


RETURN_TO_TOKENS = Exercise(
    "return_to_tokens",
    check_return_to_tokens,
    misconceptions=misconceptions(
        order_kept="The right rows came home, in the wrong order: the regrouping was not undone before sending, so "
        "tokens get each other's results.",
        order_again="The regrouping was done once more instead of being undone. Its inverse is order_B.argsort().",
        order_after="The order was undone after the rows had travelled. order_B belongs to the rows that arrived here "
        "for the experts: undo it before they leave.",
        nothing_moved="These are the rows as the experts gave them out: nothing was sent.",
        wrong_sides="The sizes of the two sides got mixed up: on the way home a rank sends what it had received, and "
        "receives what it had sent.",
        no_gradient="No gradient comes back to y_BD, so the experts would not learn.",
        divided="The gradient is divided by {ranks}. Each row was used in one place, so its gradient travels home as "
        "it is.",
        more_messages="More than the one all-to-all each way. The way holds all sizes: nothing need be asked.",
        skips="A rank did not take part. Also a rank without rows joins each all-to-all: its own tokens come home.",
    ),
    hints=(
        "y_BD[order_B] would regroup. To undo that, take the inverse order; then all_to_all_autograd, with receives in "
        "the place of sends.",
        "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)",
    ),
    uses=("all_to_all_autograd",),
)
