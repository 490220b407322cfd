"""The check of partition: one flat tensor, padded, of which the parameters and the shard are views."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from distlab.course.checks.zero.common import copy_of, numbers, storage_bytes, unit_of
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions

SHAPES = [torch.Size(shape) for shape in ((2,), (2, 3), (1, 3, 1))]  # of the parameters: 2 + 6 + 3 numbers


def case(ranks: int, count: int, hard: bool = False) -> Case:
    """So many of the parameters; where it is hard a frozen one is among them, one twice, and one of equal numbers."""
    words = f" and parameters of {' + '.join(str(shape.numel()) for shape in SHAPES[:count])} numbers"
    return Case(
        ranks, words + ", one tied, one frozen, two alike" * hard, sizes=[s.numel() for s in SHAPES[:count]], hard=hard
    )


def parameters(job: Job) -> list[nn.Parameter]:
    """What the exercise is given."""
    own = [nn.Parameter(n.view(shape)) for n, shape in zip(numbers(job, job["sizes"]), SHAPES)]
    if not job["hard"]:
        return own
    frozen = nn.Parameter(torch.full((5,), 99.0, dtype=job.dtype), requires_grad=False)
    alike = nn.Parameter(own[1].detach().clone())  # not tied: two biases begin as zeros, and go their own ways
    return [own[0], frozen, *own[1:], alike, own[0]]


def partitioned(partition: Callable[[list[nn.Parameter]], object], job: Job) -> dict:
    """What ``partition`` returns, and who sees it when the flat tensor, then the shard, is changed."""
    given = parameters(job)
    listed = list(given)
    result = call(partition, listed, changes=(0,))
    if not isinstance(result, list | tuple) or [type(each) for each in result] != [torch.Tensor] * 2:
        return {"what is returned": copy_of(result)}
    weights_P, shard_S = result
    found = {
        "the length of weights_P": len(weights_P),
        "weights_P": copy_of(weights_P),
        "shard_S": copy_of(shard_S),
        "requires_grad of weights_P, shard_S and the parameters": [t.requires_grad for t in (*result, *given)],
        "bytes in the storage under weights_P": storage_bytes(weights_P),
        "the parameters": [copy_of(p) for p in given],
        "the list that was given is as it was": list(map(id, listed)) == list(map(id, given)),
    }
    with torch.no_grad():
        weights_P += 100
        found["the parameters after weights_P += 100"] = [copy_of(p) for p in given]
        shard_S += 1000
        found["weights_P after shard_S += 1000, too"] = copy_of(weights_P)
    return found


def expect(job: Job, came: list[dict]) -> list[dict]:
    """A unit's weights and shard, which are made of parameters in the same way."""
    if any("weights_P" not in found for found in came):
        return [{"what is returned": "two plain tensors, weights_P and shard_S"}] * job.ranks

    def partition(given: list[nn.Parameter], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        unit = unit_of(dict.fromkeys(p for p in given if p.requires_grad), 2, rank, job.ranks)
        return unit.weights_P, unit.shard_S

    return [partitioned(lambda given, rank=rank: partition(given, rank), job) for rank in range(job.ranks)]


PARTITION = Exercise(
    "partition",
    Experiment(
        [case(2, 2), case(3, 2), case(4, 1), *(case(ranks, 3, hard=True) for ranks in (1, 3, 4))],
        lambda lab, job: partitioned(lab.partition, job),
        expect,
        fields=lambda job, _: {"size": sum(job["sizes"]) + job["hard"] * job["sizes"][1]},
        holds="every trainable number stands once in a flat tensor that 1 to 4 ranks cut evenly; parameters and shard "
        "are views of it; tied parameters once, frozen ones left alone",
    ),
    misconceptions=misconceptions(
        floor="The remainder is lost: {size} numbers cut into {ranks} parts leave some over. Round the size of a "
        "part up, not down.",
        unpadded="There is no padding: {ranks} ranks can't cut {size} numbers evenly. Make room for ranks × size.",
        one_too_many="{ranks} ranks cut {size} numbers evenly, and still each part was made one longer. Round up only "
        "where there is a rest: -(-total // n).",
        looked_for="Tensors were looked for with `in`, which compares them number by number. list(dict.fromkeys(…)) "
        "drops repeats without comparing numbers; `is` asks whether two are one and the same.",
        dtype="weights_P has torch's default dtype: make it in the parameters' own, dtype=p.dtype. Weights in bfloat16 "
        "must stay so.",
        in_graph="weights_P hangs on the parameters in autograd's graph (requires_grad), and no optimizer takes it "
        "then. Copy the numbers alone: p.data, or p.detach().",
        tied_twice="The tied parameter stands in weights_P twice. Its two copies would drift apart: list each "
        "parameter once.",
        by_value="Two parameters of equal numbers were taken for one, and stand in weights_P once. Only a parameter "
        "that is listed twice is tied; two biases both begin as zeros, and then differ.",
        frozen="The frozen parameter is in weights_P. Nothing moves it, so no optimizer state is kept for it: leave "
        "it out.",
        unfilled="weights_P is all zeros: the parameters' numbers were not copied into it.",
        no_start="Every parameter was written to the start of weights_P, over the one before: move on by "
        "p.numel() each time.",
        rank_0="Every rank returned rank 0's shard.",
        reversed="The shards are dealt out from the last rank down; rank r's part begins at r × size.",
        strided="This shard takes every so many-th number. A shard is contiguous: a collective cuts a tensor into "
        "blocks.",
        parameters_copied="The parameters still have their old storage: weights_P holds a copy. Set each "
        "parameter's .data to a view of its part of weights_P.",
        shard_copied="shard_S is a copy: an update of it never reaches weights_P. Return a slice, which is a view.",
    ),
    hints=(
        "Three things: list the trainable parameters, each once (dict.fromkeys keeps the order and drops repeats); "
        "round size = total / world up; make weights_P of world × size zeros.",
        "Go through the parameters with a running start: part = weights_P[start : start + p.numel()].view_as(p), copy "
        "p.data into it, then p.data = part. The shard is weights_P[rank * size : (rank + 1) * size].",
    ),
)
