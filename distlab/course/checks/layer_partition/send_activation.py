"""The check of send_activation: one message with the numbers, and the graph stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distlab.course.checks.layer_partition.common import Pair, in_words, misdirected
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import coded, misconceptions
from distlab.course.kit.outcome import Outcome

_kept: list[dist.Work] = []  # on a rank: until it ends
_GRAPH = "after the call, whether the tensor has its graph"


def case(ranks: int, pairs: list[Pair], shape: tuple[int, ...], turned: bool = False, graph: bool = True) -> Case:
    """``turned`` swaps the first two axes in memory; without a ``graph`` it is a gradient that is sent."""
    words = f", a {'turned ' * turned}{'tensor' if graph else 'gradient'} of shape {shape} to send {in_words(pairs)}"
    return Case(ranks, words, pairs=pairs, shape=shape, turned=turned, graph=graph)


def activation_of(job: Job, rank: int) -> torch.Tensor:
    """Rank r's numbers, (1, 2, 3, …) × 10^r."""
    (leaf,) = coded([torch.Size(job["shape"])], rank, job.dtype)
    h = leaf.requires_grad_(job["graph"]) * 1
    return h.transpose(0, 1) if job["turned"] else h


@contextmanager
def _keeping_works() -> Iterator[None]:
    """Gloo loses a message whose Work is dropped, now and then: kept, an isend without a wait is told the same way."""
    real = dist.isend
    dist.isend = distributed_c10d.isend = lambda *args, **kwargs: _kept.append(real(*args, **kwargs)) or _kept[-1]
    try:
        yield
    finally:
        dist.isend = distributed_c10d.isend = real


def drive(lab, job: Job) -> dict:
    """On a rank: what arrived, and whether what it sent has its graph."""
    rank, arrived, graphs = dist.get_rank(), [], []
    for source, target in job["pairs"]:
        h = activation_of(job, source)
        if rank == source:
            graph = h.grad_fn
            with _keeping_works():
                call(lab.send_activation, h, target)
            graphs.append(h.grad_fn is graph)
        elif rank == target:
            arrived.append(torch.empty(h.shape, dtype=h.dtype))
            dist.recv(arrived[-1], source)
    return {"what arrives": arrived, _GRAPH: graphs}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What the others sent each rank."""
    want = []
    for rank in range(job.ranks):
        arrived = [activation_of(job, source).detach() for source, target in job["pairs"] if target == rank]
        want.append({"what arrives": arrived, _GRAPH: [True for source, _ in job["pairs"] if source == rank]})
    return want


def judge(job: Job, outcome: Outcome):
    """One message of its own size for each tensor."""
    yield from misdirected(outcome, {pair: [activation_of(job, 0).nbytes] for pair in job["pairs"]}, ["send"])


SEND_ACTIVATION = Exercise(
    "send_activation",
    Experiment(
        (
            case(2, [(0, 1)], (3, 2)),
            case(2, [(1, 0)], (5,), graph=False),
            case(3, [(0, 1), (1, 2)], (3, 2, 2), turned=True),
            case(4, [(3, 0), (1, 3), (2, 1)], (5, 2), turned=True),
        ),
        drive,
        expect,
        judge=judge,
        loose=lambda _: ("unwaited",),
        holds="the numbers arrive in one message of their own size, at the rank that was named, also when they do not "
        "lie in a row in memory; the tensor keeps its graph",
    ),
    misconceptions=misconceptions(
        scattered="A tensor that was transposed does not lie in a row in memory, and a message takes only what does: "
        ".contiguous() makes a copy that does, and costs nothing where none is needed.",
        memory="The numbers arrive in the order in which they lie in memory, not in the order of the tensor's axes: "
        "use .contiguous() before sending.",
        shape_too="Another message goes ahead of the numbers. Shapes are agreed on once, before the training: send "
        "the numbers alone.",
        collective="A broadcast takes every rank of the world, and one rank waits for this tensor: use dist.send.",
        dtype="The numbers are sent in another dtype, but the other side expects the tensor's own.",
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
