"""What torch.compile makes of a program runs on watched ranks as on others."""

from __future__ import annotations

import functools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab import run, span
from distlab.events import Compute

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARAMETERS = 4 * 5 + 5 + 5 * 3 + 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3))


def two_steps(model: nn.Module) -> list[torch.Tensor]:
    """Losses of two steps, and the gradients that add up in them."""
    losses = []
    for _ in range(2):
        loss = model(torch.ones(2, 4) + dist.get_rank()).square().sum()
        loss.backward()
        losses.append(loss)
    return [*losses, *(parameter.grad for parameter in model.parameters())]


def compiled_ddp(compiled):
    return two_steps(compiled(DistributedDataParallel(net())))


def ddp_of_a_compiled_model(compiled):
    return two_steps(DistributedDataParallel(compiled(net())))


def compiled_optimizer(compiled):
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = compiled(optimizer.step)
    losses = []
    for number in range(2):
        with span("step", number):
            loss = model(torch.ones(2, 4) + dist.get_rank()).square().sum()
            loss.backward()
            step()
            optimizer.zero_grad()
        losses.append(loss)
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def compiled_step_with_collectives(compiled):
    model = net()

    @compiled
    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        return loss

    return [step(torch.ones(2, 4) + dist.get_rank()), *(parameter.grad for parameter in model.parameters())]


def works_waited_for_in_what_is_compiled(compiled):
    @compiled
    def exchange(x):
        received, other = torch.zeros(3), 1 - dist.get_rank()
        works = [dist.isend(x * 2, other), dist.irecv(received, other)]
        for work in works:
            work.wait()
        total = x + 1
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        return received + total

    return [exchange(torch.ones(3) + dist.get_rank()) for _ in range(2)]


def spans_and_groups_in_what_is_compiled(compiled):
    @compiled
    def work(x):
        with span("F", 0):
            x = x @ x
        group = dist.new_group([0, 1])
        dist.all_reduce(x, group=group)
        return x

    return [work(torch.ones(3, 3)) for _ in range(2)]


# Each with the bytes that a rank puts into collectives of its gradients: in DDP and by hand.
PROGRAMS = {
    compiled_ddp: 2 * 4 * PARAMETERS,
    ddp_of_a_compiled_model: 2 * 4 * PARAMETERS,
    compiled_optimizer: 2 * 4 * PARAMETERS,
    compiled_step_with_collectives: 4 * PARAMETERS,
    works_waited_for_in_what_is_compiled: 2 * 4 * 3,
    spans_and_groups_in_what_is_compiled: 2 * 4 * 9,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("record", "backend"), [("messages", "eager"), (True, "aot_eager")])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_compiled_program_computes_what_it_computes_unrecorded(program, record, backend):
    compiled = functools.partial(torch.compile, backend=backend)
    recorded, unrecorded = run(program, compiled, record=record), run(program, compiled, record=False)
    for got, expected in zip(recorded.values, unrecorded.values, strict=True):
        assert all(map(torch.equal, got, expected))
    for rank in range(2):
        assert sum(message.bytes for message in recorded.recording.messages(rank, "all_reduce")) == PROGRAMS[program]


def test_ddp_of_a_compiled_model_counts_no_more_where_it_compiles():
    recording = run(steps_in_spans, record=True).recording
    flops = [event.flops for event in recording.events(Compute, 0) if event.flops]
    forward = 2 * 2 * (4 * 5 + 5 * 3)
    backward_of_weights, backward_of_hidden = forward, 2 * 2 * 5 * 3
    assert sum(flops) == 3 * (forward + backward_of_weights + backward_of_hidden)


def steps_in_spans():
    model = DistributedDataParallel(torch.compile(net(), backend="aot_eager"))
    for number in range(3):
        with span("step", number):
            model(torch.ones(2, 4)).sum().backward()
