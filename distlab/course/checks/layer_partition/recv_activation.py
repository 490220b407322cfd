"""The check of recv_activation: a leaf that requires grad, of the agreed shape, in memory of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.layer_partition.common import misconceptions, named, no_such_rank, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def _numbers(source: int, message: int, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64)
    return (numbers * 10**message + 0.5 * source).view(shape)


def received(recv_activation, row_shape: tuple[int, ...], num_rows: list[int], backwards: bool) -> list[dict]:
    """On the last rank to receive: what each call returned, and whether a gradient reaches it. Others send.

    Each rank sends its neighbour one tensor for each of ``num_rows``; ``backwards`` from the last rank to the first.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    source, target = (rank + 1, rank - 1) if backwards else (rank - 1, rank + 1)
    arrived, template = [], torch.empty(0, *row_shape, dtype=torch.float64)
    for number, rows in enumerate(num_rows):
        if 0 <= source <= last:
            arrived.append(recv_activation(template, rows, source))
        if 0 <= target <= last:
            dist.send(_numbers(rank, number, (rows, *row_shape)), target)
    return [_look(h) | dict(template=tuple(template.shape)) for h in arrived]


def _look(h) -> dict:
    if not isinstance(h, torch.Tensor):
        return dict(type=type(h).__name__, values=h, requires_grad=False, is_leaf=False, gradient=None)
    if h.requires_grad:
        (h * h).sum().backward(inputs=[h] if h.is_leaf else None)
    gradient = h.grad if h.is_leaf else None
    return dict(
        type="Tensor", values=h.detach().clone(), requires_grad=h.requires_grad, is_leaf=h.is_leaf, gradient=gradient
    )


def check_recv_activation(learners: Callable, trial: Trial) -> str:
    """Tries ``recv_activation`` with one message and with several, rows of one axis and of two, from either side."""
    for ranks, row_shape, num_rows, backwards in (
        (2, (3,), [2], False),
        (2, (3,), [2, 2], False),
        (2, (3,), [2, 4, 1], False),
        (3, (2, 3), [3, 3], False),
        (4, (5,), [2], True),
    ):
        _try_recv(learners, trial, ranks, row_shape, num_rows, backwards)
    return (
        "every tensor has the numbers that were sent, the agreed shape and dtype, and memory of its own; it is a leaf, "
        "requires grad, and gets one"
    )


def _try_recv(learners, trial: Trial, ranks: int, row_shape, num_rows: list[int], backwards: bool) -> None:
    way = "from the next rank" if backwards else "from the rank before"
    rows = " and ".join(map(str, num_rows)) + f" row{'s' if num_rows != [1] else ''}"
    case = f"{with_ranks(ranks)}, {way}, {rows} of shape {row_shape}"
    try:
        by_rank = trial.run(case, received, learners, row_shape, num_rows, backwards, ranks=ranks)
    except RankFailed as failed:
        raise named(failed, _words(ranks, row_shape, num_rows[0]), num_rows=num_rows[0]) from None
    step = 1 if backwards else -1
    takers = [rank for rank in range(ranks) if 0 <= rank + step < ranks]
    fields = dict(num_rows=num_rows[0])
    for rank in takers:
        want = [_numbers(rank + step, number, (rows, *row_shape)) for number, rows in enumerate(num_rows)]
        _check(f"{case}, rank {rank}", by_rank[rank], want, fields)


def _check(case: str, came: list[dict], want: list[torch.Tensor], fields: dict) -> None:
    for notes in came:
        if notes["type"] != "Tensor":
            known = ("returns-nothing",) if notes["type"] in ("NoneType", "int") else ()
            raise Wrong(case, f"expected a tensor, got a {notes['type']}", known, **fields)
    reused = [want[-1] if h.shape == want[-1].shape else h for h in want]
    beliefs = {"reuses": [[*reused]], "not-received": [[torch.zeros_like(h) for h in want]]}
    compare(f"{case}, what was received", [[notes["values"] for notes in came]], [want], beliefs, **fields)
    for notes, h in zip(came, want):
        if not notes["requires_grad"]:
            raise Wrong(case, "requires_grad: expected True, got False", ("no-grad",), **fields)
        if not notes["is_leaf"]:
            raise Wrong(case, "is_leaf: expected True, got False", ("no-leaf",), **fields)
        compare(f"{case}, .grad after (h * h).sum().backward()", [notes["gradient"]], [2 * h])
        if notes["template"][0] != 0:
            detail = f"no_rows_0D: expected no rows, as before, got shape {notes['template']}"
            raise Wrong(case, detail, ("resizes",), **fields)


def _words(ranks: int, row_shape: tuple[int, ...], num_rows: int) -> dict[str, str | tuple[str, ...] | None]:
    two_axes = tuple(f"receives float64[{num_rows}, {size}]" for size in row_shape)
    return {
        "float32": "receives float32",
        "no-rows": "receives float64[0, ",
        "one-axis": (*two_axes, "too many values to unpack") if len(row_shape) > 1 else None,
        "rank-before": no_such_rank("recv", -1, ranks),
        "not-received": "returned without receiving",
    }


RECV_ACTIVATION = Exercise(
    "recv_activation",
    check_recv_activation,
    misconceptions=misconceptions(
        no_grad="The tensor does not require grad. The stage behind it then works out no gradient for its input, and "
        "there is nothing to send back: every earlier stage gets None.",
        no_leaf="The tensor is no leaf: it was made from another tensor after requires_grad_(), and autograd keeps "
        ".grad for leaves only. Let requires_grad_() be the last thing that happens to it.",
        float32="The memory for the message is float32, but the agreed dtype is another: no_rows_0D.new_empty(…) has "
        "the dtype of no_rows_0D.",
        no_rows="The memory has no rows, like no_rows_0D itself: the batch has num_rows of them, here {num_rows}.",
        one_axis="The memory has room for rows of one axis only. A row may have several axes: take all of "
        "no_rows_0D.shape[1:].",
        reuses="All calls returned the same memory, so a later message overwrote an earlier one. The backward pass "
        "still needs the earlier: make new memory at each call.",
        not_received="Nothing was received into the tensor that you return: dist.recv(tensor, source) fills the tensor "
        "that you give it.",
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
