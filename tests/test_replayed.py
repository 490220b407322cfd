"""Recorded runs, replayed: a pipeline's bubble, and how much communication DDP and hooks hide, against closed forms."""

from __future__ import annotations

import sys
from dataclasses import replace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab import machines, run, span
from distlab.events import Message
from distlab.machine.costs import ring_all_reduce
from distlab.machine.replay import replay
from distlab.models import mlp

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FLOPS_ONLY = machines.classroom.flops_only()
LINK = FLOPS_ONLY.inside


def gpipe(num_micro_batches: int, width: int = 32) -> None:
    """Four equal stages with blocking messages: all forwards, then all backwards; every stage's input requires grad."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage, kept = nn.Linear(width, width), []
    for _ in range(num_micro_batches):
        x = torch.ones(8, width)
        if rank > 0:
            dist.recv(x, rank - 1)
        y = stage(x.requires_grad_())
        if rank < last:
            dist.send(y.detach(), rank + 1)
        kept.append((x, y))
    for x, y in reversed(kept):
        gradient = torch.ones_like(y)
        if rank < last:
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if rank > 0:
            dist.send(x.grad, rank - 1)


@pytest.mark.parametrize(("num_micro_batches", "bubble"), [(8, 0.2727), (4, 0.4286)])
def test_a_recorded_pipeline_has_the_bubble_of_the_formula(num_micro_batches, bubble):
    timeline = replay(run(gpipe, num_micro_batches, ranks=4).recording, FLOPS_ONLY.with_free_links())
    assert timeline.bubbles == pytest.approx([bubble] * 4, abs=0.002)


def async_beside_work(length: int, width: int) -> None:
    work = dist.all_reduce(torch.ones(length), async_op=True)
    torch.ones(width, width) @ torch.ones(width, width)
    work.wait()


@pytest.mark.parametrize(("length", "width"), [(1000, 64), (100_000, 64), (100_000, 128)])
def test_an_async_all_reduce_hides_as_much_as_there_is_work_beside_it(length, width):
    timeline = replay(run(async_beside_work, length, width, ranks=4).recording, FLOPS_ONLY)
    sent, worked = ring_all_reduce(4 * length, 4, LINK), 2 * width**3 / FLOPS_ONLY.achieved_flops
    assert timeline.exposed == pytest.approx([max(0, sent - worked)] * 4)
    assert timeline.hidden == pytest.approx([min(sent, worked)] * 4)
    assert timeline.wall == pytest.approx(max(sent, worked))


def ddp_steps(megabytes: float) -> None:
    model = DistributedDataParallel(mlp(64, 64, 64, 64, 10), bucket_cap_mb=megabytes)
    for step in (1, 2, 3):
        with span("B", step):
            model(torch.ones(32, 64)).sum().backward()


def third_step(megabytes: float):
    """The third step, for DDP arranges its buckets in the second, and what each of its all-reduces costs."""
    recording = run(ddp_steps, megabytes, ranks=4).recording
    timeline = replay(recording, replace(FLOPS_ONLY, operator_overhead_s=machines.classroom.operator_overhead_s))
    history = list(recording.ranks[0])
    start = next(i for i, event in enumerate(history) if getattr(event, "name", "") == "B3")
    buckets = [e for e in history[start:] if isinstance(e, Message) and e.kind == "all_reduce"]
    return timeline.during("B3"), [ring_all_reduce(bucket.bytes, 4, LINK) for bucket in buckets]


def test_ddp_in_one_bucket_exposes_all_of_its_all_reduce_and_in_many_less():
    (one, cost_of_one), (many, costs) = third_step(25), third_step(0.008)
    assert len(cost_of_one) == 1 < len(costs)
    assert one.exposed == pytest.approx([cost_of_one[0]] * 4) and one.hidden == pytest.approx([0] * 4, abs=1e-12)
    assert [e + h for e, h in zip(many.exposed, many.hidden)] == pytest.approx([sum(costs)] * 4)
    assert many.exposed[0] < one.exposed[0] and many.exposed[0] >= costs[-1] * (1 - 1e-9)


def fsdp_backward() -> None:
    from torch.distributed.fsdp import fully_shard

    model = mlp(64, 64, 64, 64, 10)
    for layer in model[:-1:2]:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(32, 64)).sum().backward()


def test_fsdp_hides_its_reduce_scatters_as_its_streams_would():
    recording = run(fsdp_backward, ranks=4).recording
    at_once = [
        [e._replace(when="now") if getattr(e, "when", "") == "stream" else e for e in history]
        for history in recording.ranks
    ]
    hidden, exposed = replay(recording, FLOPS_ONLY), replay(replace(recording, ranks=at_once), FLOPS_ONLY)
    assert hidden.wall < exposed.wall
    assert sum(exposed.hidden) < 1e-9 * exposed.wall < sum(hidden.hidden)
