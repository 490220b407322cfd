"""ZeRO stage 3, lab 05's solution, against PyTorch's fully_shard: seconds and bytes of a step on two ranks."""

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from distlab import from_lab, run, span
from distlab.models import mlp
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "05_zero.ipynb"
RANKS, WIDTH, LAYERS, BATCH, STEPS = 2, 1024, 6, 256, 9
AIM = 1.15  # at most so many times fully_shard's time
TITLE = f"a step in ZeRO stage 3 on {RANKS} ranks: MLP of {LAYERS} layers of width {WIDTH:,}, batch {BATCH}, Adam"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    sharded = from_lab("zero", solution=True).sharded
    times = run(take_turns, sharded, ranks=RANKS, device="cpu", timeout=300, record=False).values[0]
    theirs, mine = (statistics.median(times[name]) for name in ("fully_shard", "lab 05"))
    best = min(times["lab 05"]) / min(times["fully_shard"])
    peaks = {name: peak_of(make, sharded) for name, make in WAYS.items()}
    return Group(
        TITLE,
        [Row("fully_shard", theirs), Row("lab 05", mine)],
        [
            f"lab 05 takes {mine / theirs:.2f} × fully_shard's time, {best:.2f} × at best (aim: at most {AIM})",
            f"its peak is {peaks['lab 05'] / peaks['fully_shard']:.2f} × fully_shard's (aim: at most 1)",
        ],
    )


def layers_of(model):
    return [layer for layer in model if isinstance(layer, nn.Linear)]


def with_fully_shard(_):
    """Returns a step of PyTorch's own on this rank."""
    from torch.distributed.fsdp import fully_shard

    model, mesh = mlp(*[WIDTH] * (LAYERS + 1)), init_device_mesh("cpu", (dist.get_world_size(),))
    for part in [*layers_of(model), model]:
        fully_shard(part, mesh=mesh)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x):
        adam.zero_grad()
        model(x).square().mean().backward()
        adam.step()

    return step


def with_lab(sharded):
    """Returns a step of the lab's own on this rank."""
    model = mlp(*[WIDTH] * (LAYERS + 1))
    model, units = sharded(model, [[layer] for layer in layers_of(model)])

    def step(x):
        for unit in units:
            unit.shard_S.grad = None
        model(x).square().mean().backward()
        for unit in units:
            unit.optimizer.step()

    return step


WAYS = {"fully_shard": with_fully_shard, "lab 05": with_lab}


def take_turns(sharded):
    """Returns the seconds of a step by name, the ways taking turns; all ranks begin and end together."""
    x = torch.randn(BATCH // dist.get_world_size(), WIDTH)
    steps = {name: make(sharded) for name, make in WAYS.items()}
    times = {name: [] for name in steps}
    for _ in range(STEPS + 1):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step(x)
            dist.barrier()
            times[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in times.items()}


def second_step(make, sharded):
    x, step = torch.randn(BATCH // dist.get_world_size(), WIDTH), make(sharded)
    for number in (1, 2):
        with span("step", number):
            step(x)


def peak_of(make, sharded):
    """Returns the most bytes that rank 0 holds in its second step."""
    recorded = run(second_step, make, sharded, ranks=RANKS, device="cpu", timeout=300)
    return recorded.memory().during("step2").peaks[0]["all together"]
