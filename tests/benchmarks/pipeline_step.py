"""A step of lab 07's pipeline against torch's own schedules, on two ranks."""

import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from distlab import run
from distlab.course.notebook import Notebook
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "07_pipeline.ipynb"
WIDTH, BATCH, NUM_MICRO, TURNS = 1024, 1024, 8, 7
AIM = 1.10  # times torch's step, at most
TITLE = f"pipeline: 2 stages of 4 layers of width {WIDTH:,}, {NUM_MICRO} micro-batches of {BATCH // NUM_MICRO} rows"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    lab = Notebook(NOTEBOOK).definitions()
    group = Group(TITLE)
    for kind, name in ((ScheduleGPipe, "gpipe_schedule"), (Schedule1F1B, "one_f_one_b_schedule")):
        with group.attempt(kind.__name__, f"lab 07's, as {kind.__name__}"):
            schedule = lab["with_messages"](lab["for_all"](lab[name], 2, NUM_MICRO), early=True)
            needed = {key: lab[key] for key in ("make_modules", "Stage", "split_microbatches", "execute", "AsyncMail")}
            times = run(take_turns, needed, kind, schedule, ranks=2, device="cpu", timeout=300, record=False).values[0]
            medians = {who: statistics.median(taken) for who, taken in times.items()}
            group.rows.extend(Row(who, medians[who]) for who in times)
            theirs, mine = times
            ratio, best = medians[mine] / medians[theirs], min(times[mine]) / min(times[theirs])
            group.remarks.append(
                f"{mine}: {ratio:.2f} × the time of {theirs}, {best:.2f} × at best (aim: at most {AIM})"
            )
    return group


def take_turns(lab, kind, schedule):
    """Returns the seconds that a step took on the slower rank, torch's and the lab's, each in its turns."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    x_BD, y_B = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
    module = lab["make_modules"](2, width=WIDTH, dtype=torch.float32)[rank]
    stage = lab["Stage"](module, rank, 2, WIDTH)
    torchs = kind(PipelineStage(module, rank, 2, x_BD.device), NUM_MICRO, loss_fn=F.cross_entropy)

    def theirs():
        torchs.step(*[x_BD] * (rank == 0), target=y_B if rank == 1 else None)

    def mine():
        micro_batches = lab["split_microbatches"](x_BD, y_B, NUM_MICRO)
        lab["execute"]([stage], schedule[rank], micro_batches, lab["AsyncMail"]())

    steps = {kind.__name__: theirs, f"lab 07's, as {kind.__name__}": mine}
    times = {name: [] for name in steps}
    gradients = []
    for _ in range(TURNS + 1):
        for name, step in steps.items():
            times[name].append(slower(step, module))
            gradients.append([p.grad.clone() for p in module.parameters()])
    for one, other in zip(*gradients[-2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    return {name: taken[1:] for name, taken in times.items()}


def slower(step, module):
    module.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    step()
    taken = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()
