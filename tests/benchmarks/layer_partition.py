"""A training step cut by layers, lab 06's solution, against one process and PyTorch's pipelining of one micro-batch."""

import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab import run
from distlab.course.notebook import Notebook
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "06_layer_partition.ipynb"
LAYERS, WIDTH, ROWS, STEPS = 8, 512, 512, 15
TITLE = f"training step of {LAYERS} layers of {WIDTH} × {WIDTH}, {ROWS} rows, one thread a rank"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    lab = Notebook(NOTEBOOK).definitions()
    ours = lab["make_stage"], lab["partitioned_step"]
    ways = {"one process": (1, *ours), "lab 06, 2 ranks": (2, *ours), "ScheduleGPipe, 2 ranks": (2, ours[0], None)}
    group = Group(TITLE)
    for name, (ranks, *how) in ways.items():
        with group.attempt(name):
            times = run(steps, *how, ranks=ranks, device="cpu", timeout=300, record=False).values[0]
            group.rows.append(Row(name, statistics.median(times)))
    ratio = group.ratio("lab 06, 2 ranks", to="ScheduleGPipe, 2 ranks")
    group.remarks.append(f"lab 06 takes {ratio:.2f} × as long as ScheduleGPipe; neither can be faster than one process")
    return group


def make_layer(i):
    torch.manual_seed(i)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())


def steps(make_stage, partitioned_step):
    """Returns the seconds of each step; with PyTorch's schedule if ``partitioned_step`` is None."""
    torch.set_num_threads(1)
    stage = make_stage(make_layer, LAYERS)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    batch = torch.ones(ROWS, WIDTH), torch.arange(ROWS) % WIDTH
    step = pytorchs_step(stage, optimizer, *batch)
    if partitioned_step is not None:

        def step():
            partitioned_step(stage, optimizer, *batch, torch.empty(0, WIDTH))

    times = []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        step()
        dist.barrier()
        times.append(time.perf_counter() - start)
    return times[3:]


def pytorchs_step(stage, optimizer, x, y):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    wrapped = PipelineStage(stage, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(wrapped, n_microbatches=1, loss_fn=F.cross_entropy)

    def step():
        schedule.step(*[x] * (rank == 0), target=y if rank == world - 1 else None)
        optimizer.step()
        optimizer.zero_grad()

    return step
