"""Two ranks against one process: one step of data-parallel training, one thread each."""

import torch
import torch.distributed as dist
from torch import nn

from distlab import run
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import median_seconds

WIDTH, BATCH, STEPS = 2048, 1024, 7


def measure():
    alone, *_ = run(time_of_a_step, ranks=1, device="cpu", timeout=300, record=False).values
    together = max(run(time_of_a_step, ranks=2, device="cpu", timeout=300, record=False).values)
    group = Group(
        f"one step: MLP of width {WIDTH:,}, batch {BATCH:,}, one flat all-reduce, one thread each",
        [Row("one process", alone), Row("two ranks", together)],
    )
    group.remarks.append(f"two ranks are {1 / group.ratio('two ranks'):.2f} × as fast as one process")
    return group


def time_of_a_step():
    """Returns the median seconds of a step on this rank, for its share of the batch."""
    torch.set_num_threads(1)
    model = nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
    x = torch.randn(BATCH // dist.get_world_size(), WIDTH)
    gradients = flat_gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step(model, x, gradients, optimizer)
    return median_seconds(lambda: step(model, x, gradients, optimizer), STEPS)


def linear():
    return nn.Linear(WIDTH, WIDTH)


def flat_gradients(model):
    """Returns one tensor that holds all gradients: each parameter's `.grad` is a view of its part."""
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def step(model, x, gradients, optimizer):
    gradients.zero_()
    model(x).square().mean().backward()
    if dist.get_world_size() > 1:
        dist.all_reduce(gradients)
        gradients /= dist.get_world_size()
    optimizer.step()
