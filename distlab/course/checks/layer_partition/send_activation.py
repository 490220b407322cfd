"""The check of send_activation: one message with the numbers, and the graph stays behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distlab.course.checks.layer_partition.common import misconceptions, named, no_such_rank, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Wait
from distlab.recording import Recording

_kept: list[dist.Work] = []  # on a rank: until it ends
_FORWARD, _HOME = "to the next rank", "from the last rank to rank 0"


def _pairs(way: str, ranks: int) -> list[tuple[int, int]]:
    """Who sends to whom, in order."""
    return [(rank, rank + 1) for rank in range(ranks - 1)] if way == _FORWARD else [(ranks - 1, 0)]


@contextmanager
def keeping_sends() -> Iterator[None]:
    """On a rank: keeps every isend's Work, for gloo loses a message whose Work is dropped before it was waited for."""
    real = dist.isend

    def isend(*args, **kwargs):
        _kept.append(real(*args, **kwargs))
        return _kept[-1]

    dist.isend = distributed_c10d.isend = isend
    try:
        yield
    finally:
        dist.isend = distributed_c10d.isend = real


def activation(rank: int, leaf: torch.Tensor, shape: tuple[int, ...], is_turned: bool) -> torch.Tensor:
    """Rank r's numbers, (1, 2, 3, …) × 10^r × leaf, with a graph; ``is_turned`` swaps the first two axes in memory."""
    numbers = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape) * 10**rank * leaf
    return numbers.transpose(0, 1) if is_turned else numbers


def sent(send_activation, way: str, shape: tuple[int, ...], is_turned: bool) -> dict:
    """On a rank: what arrived, and what became of the tensor that was sent."""
    rank, one = dist.get_rank(), torch.ones((), dtype=torch.float64, requires_grad=True)
    h = activation(rank, one, shape, is_turned)
    notes = dict(arrived=None, has_graph=True, kept=True)
    for source, target in _pairs(way, dist.get_world_size()):
        if rank == source:
            with keeping_sends():
                send_activation(h, target)
            notes |= dict(has_graph=h.requires_grad and h.grad_fn is not None)
            notes |= dict(kept=bool((h == activation(rank, one, shape, is_turned)).all()))
        elif rank == target:
            notes["arrived"] = torch.empty(h.shape, dtype=torch.float64)
            dist.recv(notes["arrived"], source)
    return notes


def check_send_activation(learners: Callable, trial: Trial) -> str:
    """Tries ``send_activation`` down the line and back to rank 0, with tensors that lie in memory in two ways."""
    for ranks, way, shape, is_turned in (
        (2, _FORWARD, (3, 2), False),
        (2, _HOME, (3, 2), False),
        (3, _FORWARD, (3, 2, 2), True),
        (4, _HOME, (5, 2), True),
    ):
        _try_send(learners, trial, ranks, way, shape, is_turned)
    return (
        "the numbers arrive in one message of their own size, at the rank that was named, also when they do not lie "
        "in a row in memory; the tensor keeps its graph"
    )


def _try_send(learners, trial: Trial, ranks: int, way: str, shape, is_turned: bool) -> None:
    case = f"{with_ranks(ranks)}, {way}, a tensor of shape {tuple(shape)}{', turned' if is_turned else ''}"
    try:
        run = trial.watch(case, sent, learners, way, shape, is_turned, ranks=ranks)
    except RankFailed as failed:
        raise named(failed, _words(ranks, shape)) from None
    _check_waits(case, run.recording)
    one = torch.ones((), dtype=torch.float64)
    want: list = [None] * ranks
    for source, target in _pairs(way, ranks):
        want[target] = activation(source, one, shape, is_turned)
    in_memory = [None if h is None else h.transpose(0, 1).contiguous().view(h.shape) for h in want]
    arrived = [notes["arrived"] for notes in run.values]
    compare(f"{case}, what arrives", arrived, want, {"memory": in_memory} if is_turned else {})
    for source, _ in _pairs(way, ranks):
        if not run.values[source]["has_graph"]:
            detail = f"rank {source}, after the call: expected the tensor to have its graph, it has none"
            raise Wrong(case, detail, ("cuts",))
        if not run.values[source]["kept"]:
            raise Wrong(case, f"rank {source}: expected the tensor to keep its numbers, they changed")


def _check_waits(case: str, recording: Recording) -> None:
    """Raises Wrong if a send was never waited for, before values are looked at: they may be wrong only now and then."""
    for rank, history in enumerate(recording.ranks):
        waited = {event.id for event in history if isinstance(event, Wait)}
        if any(message.id not in waited for message in recording.messages(rank, "send")):
            raise Wrong(case, f"rank {rank} never waited for its isend", ("unwaited",))


def _words(ranks: int, shape: tuple[int, ...]) -> dict[str, str | None]:
    return {
        "scattered": "be contiguous",
        "shape-too": "sends int64",
        "by-rows": f"sends float64[{', '.join(map(str, shape[1:]))}]",
        "float32": "sends float32",
        "next": no_such_rank("send", ranks, ranks),
        "unwaited": "before its isend",
        "collective": None,
    }


SEND_ACTIVATION = Exercise(
    "send_activation",
    check_send_activation,
    misconceptions=misconceptions(
        scattered="A tensor that was transposed does not lie in a row in memory, and a message takes only what does: "
        ".contiguous() makes a copy that does, and costs nothing where none is needed.",
        memory="The numbers arrive in the order in which they lie in memory, not in the order of the tensor's axes: "
        "use .contiguous() before sending.",
        shape_too="Another message goes ahead of the numbers. Shapes are agreed on once, before the training: send "
        "the numbers alone.",
        collective="{kind} takes every rank of the world, and one rank alone waits for this tensor: use dist.send.",
        float32="The numbers are sent as float32, but the other side expects the tensor's own dtype.",
        by_rows="A message of one row was sent where the whole tensor is waited for: send one message, not one "
        "per row.",
        cuts="The tensor has lost its graph, and no gradient will get past it. .detach() gives another tensor without "
        "a graph; .detach_() and .requires_grad_(False) change the one you were given.",
        unwaited="The send was started and never waited for: it may not have left when the function returns. Use "
        "dist.send.",
        next="The tensor goes to the next rank, whatever `to` says. Gradients go the other way.",
    ),
    hints=(
        "One call: dist.send(tensor, rank). Two things about the tensor are left to see to.",
        "h_BD.detach() has the same numbers and no graph; .contiguous() puts them in a row in memory.",
    ),
)
