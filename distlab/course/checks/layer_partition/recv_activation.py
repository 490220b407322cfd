"""The check of recv_activation: a leaf that requires grad, of the agreed shape, in memory of its own."""

from __future__ import annotations

from math import prod

import torch
import torch.distributed as dist

from distlab.course.checks.layer_partition.common import ANY, Pair, in_words, misdirected
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome


def case(ranks: int, pairs: list[Pair], rows: list[int], row: tuple[int, ...]) -> Case:
    """Messages from rank to rank, one after the other, of so many rows each."""
    words = f", {listed(rows)} rows of shape {row} sent {in_words(pairs)}"
    return Case(ranks, words, pairs=pairs, rows=rows, row=row)


def numbers_of(job: Job, message: int) -> torch.Tensor:
    """What is in a message: 1, 2, 3, … times 10^message, and half of who sends it."""
    shape, (source, _) = (job["rows"][message], *job["row"]), job["pairs"][message]
    return (torch.arange(1, 1 + prod(shape)) * 10.0**message + 0.5 * source).view(shape).to(job.dtype)


def _look(arrived: list) -> dict:
    if others := [type(h).__name__ for h in arrived if not isinstance(h, torch.Tensor)]:
        return {"what is returned": others[0]}
    notes = {"what is returned": "Tensor", "what is received": [h.detach().clone() for h in arrived]}
    notes |= {"requires_grad": [h.requires_grad for h in arrived], "is_leaf": [h.is_leaf for h in arrived]}
    for h in arrived:
        if h.requires_grad and h.is_leaf:
            (h * h).sum().backward()
    return notes | {".grad after (h * h).sum().backward()": [h.grad if h.is_leaf else None for h in arrived]}


def drive(lab, job: Job) -> dict:
    """On a rank: what there is to say of all that was received. The senders are ours."""
    rank, arrived = dist.get_rank(), []
    template = torch.empty(0, *job["row"], dtype=job.dtype)
    for number, (source, target) in enumerate(job["pairs"]):
        if rank == target:
            arrived.append(call(lab.recv_activation, template, job["rows"][number], source))
        elif rank == source:
            dist.send(numbers_of(job, number), target)
    return _look(arrived)


def expect(job: Job, came: list[dict]) -> list[dict]:
    """A leaf for each message."""
    targets = [target for _, target in job["pairs"]]
    by_rank = [[n for n, target in enumerate(targets) if target == rank] for rank in range(job.ranks)]
    return [_look([numbers_of(job, n).requires_grad_() for n in mine]) for mine in by_rank]


def judge(job: Job, outcome: Outcome):
    """One message for each call, from the rank that was named."""
    want: dict[Pair, list[int]] = {}
    for number, pair in enumerate(job["pairs"]):
        want.setdefault(pair, []).append(numbers_of(job, number).nbytes)
    yield from misdirected(outcome, want, ["recv"])


RECV_ACTIVATION = Exercise(
    "recv_activation",
    Experiment(
        (
            case(2, [(0, 1)], [2], (3,)),
            case(2, [(0, 1), (0, 1)], [2, 2], (3,)),
            case(2, [(1, 0), (1, 0), (0, 1)], [2, 4, 1], (3,)),
            case(3, [(0, 1), (1, 2), (0, 1)], [3, 3, 3], (2, 3)),
            case(4, [(3, 0), (1, 0), (2, 1)], [2, 2, 1], (5,)),
        ),
        drive,
        expect,
        judge=judge,
        named={ANY: "any-rank"},
        fields=lambda job, _: {"num_rows": job["rows"][0]},
        holds="every tensor has the numbers that were sent, the agreed shape and dtype, and memory of its own; it is a "
        "leaf, requires grad, and gets one",
    ),
    misconceptions=misconceptions(
        no_grad="The tensor does not require grad. The stage behind it then works out no gradient for its input, and "
        "there is nothing to send back: every earlier stage gets None.",
        no_leaf="The tensor is no leaf: it was made from another tensor after requires_grad_(), and autograd keeps "
        ".grad for leaves only. Let requires_grad_() be the last thing that happens to it.",
        dtype="The memory for the message has another dtype than was agreed on (torch.empty alone makes float32): "
        "no_rows_0D.new_empty(…) has the dtype of no_rows_0D.",
        no_rows="The memory has no rows, like no_rows_0D itself: the batch has num_rows of them, here {num_rows}.",
        one_axis="The memory has room for rows of one axis only. A row may have several axes: take all of "
        "no_rows_0D.shape[1:].",
        reuses="All calls returned the same memory, so a later message overwrote an earlier one. The backward pass "
        "still needs the earlier: make new memory at each call.",
        not_received="Nothing was received into the tensor that you return: dist.recv(tensor, source) fills the tensor "
        "that you give it.",
        any_rank="The receive names no rank, so it takes what any rank sends first: dist.recv(tensor, source).",
        rank_before="The tensor was received from the rank before this one, whatever `source` says. Gradients come the "
        "other way.",
        resizes="no_rows_0D itself was changed, and every later call takes the shape from it. Make new memory: "
        "no_rows_0D.new_empty(…).",
        returns_nothing="What came back is not the tensor: dist.recv returns the sender's rank and writes into the "
        "tensor that you give it.",
    ),
    hints=(
        "Three lines: make memory of the right shape and dtype, receive into it, say that it requires grad.",
        "no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:]) has the right shape and dtype; dist.recv(h_BD, source) "
        "fills it; h_BD.requires_grad_() changes it in place and returns it.",
    ),
)
