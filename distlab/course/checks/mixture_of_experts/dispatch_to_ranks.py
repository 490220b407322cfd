"""The check of dispatch_to_ranks: the rows of a rank's experts, by expert, and all that the way home needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.all_to_all_autograd import pieces
from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, kind_of, misconceptions, named
from distlab.course.checks.mixture_of_experts.way import (
    CASES,
    dispatched,
    in_words,
    local_counts,
    returned,
    sizes,
    ways,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span

Counts = list[list[int]]
WIDTH = 2
MANY = [[9, 11, 10, 12], [10, 8, 12, 9]]  # rows enough that an unstable sort changes their order


def sent_out(dispatch_to_ranks: Callable, counts: Counts, seed: int) -> dict:
    """On a rank: what dispatch_to_ranks returned, and the gradient of x."""
    rank = dist.get_rank()
    mine = torch.tensor(counts[rank])
    x = given(seed + rank, sum(counts[rank]), WIDTH).requires_grad_()
    with span("forward"):
        came = dispatch_to_ranks(x, mine)
    if not isinstance(came, tuple) or len(came) != 3 or not isinstance(came[0], torch.Tensor):
        return dict(type=kind_of(came))
    y, local, way = came
    if not isinstance(way, tuple) or len(way) != 3:
        return dict(type=f"{type(way).__name__} as the way")
    if y.requires_grad:
        y.backward(given(seed + 100 + rank, *y.shape))
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    kept = torch.equal(x.detach(), given(seed + rank, *x.shape)) and mine.tolist() == counts[rank]
    way = [list(map(int, way[0])), list(map(int, way[1])), torch.as_tensor(way[2]).clone()]
    local = local.tolist() if isinstance(local, torch.Tensor) else list(map(int, local))
    return dict(type="", y=y.detach().clone(), local=local, way=way, gradient=gradient.clone(), kept=kept)


def check_dispatch_to_ranks(learners: Callable, trial: Trial) -> str:
    """Tries ``dispatch_to_ranks`` on 1 to 4 ranks, with experts and ranks that get nothing among them."""
    for counts in (*CASES, MANY):
        case, ranks = in_words(counts), len(counts)
        try:
            run = trial.watch(case, sent_out, learners, counts, trial.seed, ranks=ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, counts, trial.seed)
        _check_messages(case, run, counts)
    return (
        "rows, counts, the way home and gradients are right, with one exchange of counts; on 1 to 4 ranks, also where "
        "a rank or an expert gets nothing"
    )


_WORDS = {
    "tensors": ("incompatible function arguments",),
    "own-sizes": ("plit sizes", "different sizes in all_to_all", "doesn't match total dim 0 size"),
    "skips": ("without joining", "never joined", "returned without", "without receiving", "without sending"),
}


def _compare(case: str, run: Run, counts: Counts, seed: int) -> None:
    ranks = len(counts)
    for rank, found in enumerate(run.values):
        if found["type"]:
            raise Wrong(case, f"rank {rank}: expected (x_BD, counts_L, way), got {found['type']}")
    x = [given(seed + rank, sum(counts[rank]), WIDTH) for rank in range(ranks)]
    want, right = dispatched(x, counts), ways(counts)
    arrived = pieces(x, sizes(counts))
    inverse = [one[way.order.argsort()] for one, way in zip(arrived, right)]
    is_sorted = all(found["way"][2].tolist() == list(range(len(y))) for found, y in zip(run.values, arrived))
    beliefs = {"as-arrived" if is_sorted else "by-rank": arrived, "inverse": inverse, "nothing-moved": x}
    got, came = [found["y"] for found in run.values], local_counts(counts)
    detail = difference_by_rank(got, want)
    if detail and not difference_by_rank(*(_sorted_by_expert(y, came) for y in (got, want))):
        raise Wrong(f"{case}, the rows", detail, ("unstable",))
    compare(f"{case}, the rows", got, want, beliefs)
    local = [[sum(column) for column in zip(*rows)] for rows in came]
    own = [came[rank][rank] for rank in range(ranks)]
    sent = [[sum(row[e :: len(row) // ranks]) for e in range(len(row) // ranks)] for row in counts]
    beliefs = {"own-counts": own, "sent-counts": sent, "by-source": [[sum(r) for r in rows] for rows in came]}
    compare(f"{case}, counts_L", [found["local"] for found in run.values], local, beliefs)
    got = [found["way"] for found in run.values]
    lists = [[way.sends, way.receives] for way in right]
    swapped = {"swapped": [[way.receives, way.sends] for way in right]}
    compare(f"{case}, sends and receives", [way[:2] for way in got], lists, swapped)
    orders = [way.order for way in right]
    beliefs = {"order-inverse": [order.argsort() for order in orders]}
    compare(f"{case}, order_B", [way[2] for way in got], orders, beliefs)
    gradients = returned([given(seed + 100 + rank, *y.shape) for rank, y in enumerate(want)], counts)
    beliefs = {"no-gradient": [torch.zeros_like(one) for one in x]}
    if difference_by_rank(beliefs["no-gradient"], gradients):
        compare(f"{case}, the gradient", [found["gradient"] for found in run.values], gradients, beliefs)
    keep_inputs(case, [found["kept"] for found in run.values], "what it was given")


def _sorted_by_expert(y: list[torch.Tensor], came: list[Counts]) -> list:
    """By rank, the rows of each of its experts, sorted by their numbers."""
    sizes = [[sum(column) for column in zip(*rows)] for rows in came]
    fits = [len(one) == sum(size) for one, size in zip(y, sizes)]
    return [[sorted(e.tolist()) for e in one.split(size)] for one, size in zip(y, sizes)] if all(fits) else list(y)


def _check_messages(case: str, run: Run, counts: Counts) -> None:
    ranks, per_rank = len(counts), len(counts[0]) // len(counts)
    for rank in range(ranks):
        messages = run.recording.messages(rank)
        kinds = {m.kind for m in messages} - {"send", "recv", "all_to_all"}
        if kinds:
            kind = sorted(kinds)[0]
            detail = f"rank {rank}: expected counts and rows to go by all-to-all, got {kind}"
            raise Wrong(case, detail, ("gathers",), kind=kind)
        whole = [m for m in messages if "int" in m.dtype]
        numbers = sum(m.elements for m in whole if m.kind == "send")
        numbers += sum(sum(m.parts) - m.parts[rank] if m.parts else m.elements for m in whole if m.kind == "all_to_all")
        want = per_rank * (ranks - 1)
        if numbers > want:
            detail = f"rank {rank}: expected {want} counts sent to other ranks, got {numbers}"
            raise Wrong(case, detail, ("counts-again",), want=want)


DISPATCH_TO_RANKS = Exercise(
    "dispatch_to_ranks",
    check_dispatch_to_ranks,
    misconceptions=misconceptions(
        by_rank="The rows are still in the order of arrival: by the rank they came from. The experts want all rows of "
        "one expert together: x_BD[order_B].",
        inverse="The rows were regrouped by the inverse of the order. It is x_BD[order_B], with order_B the argsort of "
        "the experts' numbers.",
        nothing_moved="These are this rank's own rows: nothing was sent.",
        as_arrived="The rows are still in the order of arrival, and order_B is 0, 1, 2, …: nothing was regrouped. "
        "expert_B runs through this rank's experts anew for each rank that sends, arange(L).repeat(W); with "
        "repeat_interleave(W) it would be sorted already.",
        unstable="Each expert has its own rows, but not in the order in which they came: argsort keeps equals as they "
        "stood only with stable=True.",
        tensors="sends or receives are tensors. all_to_all_single wants lists of whole numbers: .tolist().",
        own_counts="counts_L holds this rank's own rows only; rows of all ranks come to its experts.",
        sent_counts="counts_L is made of what this rank sent; it says how many rows have arrived for each expert here.",
        by_source="counts_L is by the rank that sent; it should be by this rank's experts.",
        own_sizes="The sizes don't fit those of the other side: how much comes, only the sender knows. Exchange the "
        "counts first, by all_to_all.",
        swapped="In the way, sends and receives have changed places.",
        order_inverse="The order in the way is the inverse of the one by which the rows were regrouped.",
        no_gradient="No gradient comes back to x_AD.",
        gathers="{kind} sends everything to everybody. Each rank needs its own experts' rows and counts only.",
        counts_again="The counts were exchanged more than once: {want} numbers are enough, one for each expert of each "
        "other rank.",
        skips="A rank did not take part. Also a rank without rows joins each all-to-all.",
    ),
    hints=(
        "counts_E.view(W, -1) has a row for each rank. all_to_all of it gives came_WL, what comes from each rank for "
        "each expert here. Sums over the last axis are sends and receives; the sum over the first is counts_L.",
        "expert_B = torch.arange(L).repeat(W).repeat_interleave(came_WL.flatten()); order_B = "
        "expert_B.argsort(stable=True). Return the arrived rows [order_B].",
    ),
    uses=("all_to_all", "all_to_all_autograd"),
)
