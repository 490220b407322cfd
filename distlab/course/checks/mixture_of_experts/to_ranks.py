"""The checks of dispatch_to_ranks and return_to_tokens: rows to the ranks of their experts, and home."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import (
    RETURNED,
    SIZES_SENT,
    gradients,
    if_returned,
    kind_of,
    shown_by,
    too_many_bytes,
)
from distlab.course.checks.mixture_of_experts.way import (
    WIDTH,
    Counts,
    dispatched,
    local_counts,
    returned,
    sizes,
    there_and_back,
    ways,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

# In the first case each rank sends as many rows as it receives. By rank, how many rows it has for each expert.
COUNTS: tuple[Counts, ...] = (
    [[1, 3, 1, 1], [1, 1, 3, 1]],
    [[1, 2, 1, 1], [2, 1, 2, 2]],
    [[2, 1, 0], [1, 1, 3], [0, 2, 1]],
    [[2, 0, 1]],
    [[0, 2, 0, 0, 1, 1, 0, 1], [1, 1, 0, 0, 2, 2, 1, 0], [0] * 8, [2, 2, 0, 0, 1, 3, 0, 1]],
    [[3, 0, 0, 0], [2, 0, 0, 0]],
)
SAME_SIZES = [[3, 1, 1, 1], [1, 1, 1, 3]]  # as in the first case, in another order
MANY = [[9, 11, 10, 12], [10, 8, 12, 9]]  # rows enough that an unstable sort changes their order
ROWS, GRADIENT = "the rows", "the gradient"
THREE = "x_BD, counts_L and a way of 3"


def case(counts: Counts) -> Case:
    """A case of rows for experts."""
    return Case(len(counts), f", {len(counts[0])} experts and counts {counts}", counts=counts)


def at_tokens(job: Job, of: int = 0) -> list[torch.Tensor]:
    """By rank, a number for each number of the tokens that it sends."""
    return [job.random(sum(row), WIDTH, of=of + rank) for rank, row in enumerate(job["counts"])]


def at_experts(job: Job, of: int = 0) -> list[torch.Tensor]:
    """By rank, a number for each number that its experts take or give out."""
    return [job.random(len(way.order), WIDTH, of=of + rank) for rank, way in enumerate(ways(job["counts"]))]


def three(came) -> str:
    """Whether what came is what is asked for."""
    if not isinstance(came, tuple | list) or len(came) != 3 or not isinstance(came[0], torch.Tensor):
        return kind_of(came)
    return THREE if isinstance(came[2], tuple | list) and len(came[2]) == 3 else f"{kind_of(came[2])} as the way"


def drive_dispatch(lab, job: Job) -> dict:
    """On a rank: what came, and the gradient of what was sent."""
    rank = dist.get_rank()
    x = at_tokens(job)[rank].requires_grad_()
    came = call(lab.dispatch_to_ranks, x, torch.tensor(job["counts"][rank]))
    if three(came) != THREE:
        return {RETURNED: three(came)}
    y, local, (*lists, order) = came
    found = {RETURNED: THREE, ROWS: y.detach().clone(), "counts_L": list(map(int, local))}
    found |= {"sends and receives": [list(map(int, numbers)) for numbers in lists], "order_B": torch.as_tensor(order)}
    return found | {GRADIENT: gradients(y, job.random(*y.shape, of=9 + rank), x)[0]}


def expect_dispatch(job: Job, came: list[dict]) -> list[dict]:
    """Every rank's rows, by expert and then by source, and the gradients back where they belong."""
    counts = job["counts"]
    rows, arrived = dispatched(at_tokens(job), counts), returned(at_experts(job, of=9), counts)
    want = []
    for y, local, way, gradient in zip(rows, local_counts(counts), ways(counts), arrived):
        of_rank = {ROWS: y, "counts_L": list(map(sum, zip(*local))), "sends and receives": list(way[:2])}
        want.append(of_rank | {"order_B": way.order, GRADIENT: gradient})
    return if_returned(THREE, came, want)


def num_counts(job: Job) -> int:
    """How many counts a rank has to send: one for each expert elsewhere."""
    return len(job["counts"][0]) // job.ranks * (job.ranks - 1)


def fields(job: Job, outcome: Outcome | None) -> dict:
    """How many counts are enough, and what else than an all-to-all was called."""
    kinds = (m.kind for m in (outcome.messages(0) if outcome else ()) if m.kind not in ("send", "recv", "all_to_all"))
    return {"want": num_counts(job), "kind": next(kinds, "")}


def judge_dispatch(job: Job, outcome: Outcome):
    """Rows to others and their gradients, and the counts once."""
    return too_many_bytes(outcome, 8 * num_counts(job), there_and_back(job, sizes(job["counts"])))


def shown(job: Job, outcome: Outcome) -> tuple[str, ...]:
    """What is sent too much by another collective is gathered; else it is counts."""
    is_gathered = fields(job, outcome)["kind"]
    return ("gathers",) if is_gathered else shown_by(judge_dispatch, {SIZES_SENT: "counts-again"})(job, outcome)


DISPATCH_TO_RANKS = Exercise(
    "dispatch_to_ranks",
    Experiment(
        [case(counts) for counts in (*COUNTS, MANY)],
        drive_dispatch,
        expect_dispatch,
        judge=judge_dispatch,
        fields=fields,
        shown=shown,
        holds="rows, counts, the way home and gradients are right, with one exchange of counts; on 1 to 4 ranks, also "
        "where a rank or an expert gets nothing",
    ),
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


def drive_return(lab, job: Job) -> dict:
    """On a rank: the rows that came home, and the gradient of what was sent."""
    rank = dist.get_rank()
    y, slope = at_experts(job)[rank].requires_grad_(), at_tokens(job, of=9)[rank]
    out = call(lab.return_to_tokens, y, tuple(ways(job["counts"])[rank]))
    if kind_of(out) != kind_of(slope):
        return {RETURNED: kind_of(out)}
    return {RETURNED: kind_of(out), ROWS: out.detach().clone(), GRADIENT: gradients(out, slope, y)[0]}


def expect_return(job: Job, came: list[dict]) -> list[dict]:
    """Every rank's own rows, in their order."""
    rows, slopes = returned(at_experts(job), job["counts"]), at_tokens(job, of=9)
    want = [{ROWS: y, GRADIENT: gradient} for y, gradient in zip(rows, dispatched(slopes, job["counts"]))]
    return if_returned(list(map(kind_of, slopes)), came, want)


def judge_return(job: Job, outcome: Outcome):
    """Rows to others and their gradients; the way holds all sizes."""
    return too_many_bytes(outcome, 0, there_and_back(job, sizes(job["counts"])))


RETURN_TO_TOKENS = Exercise(
    "return_to_tokens",
    Experiment(
        [case(counts) for counts in (*COUNTS, SAME_SIZES)],
        drive_return,
        expect_return,
        judge=judge_return,
        shown=shown_by(judge_return, {SIZES_SENT: "more-messages"}),
        holds="every row and every gradient is where it came from, and nothing else was sent; on 1 to 4 ranks",
    ),
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
