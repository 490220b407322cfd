"""A learner's ring all-reduce, lab 01's solution, against gloo's own."""

import statistics
import time

import torch
import torch.distributed as dist

from distlab import run
from distlab.course.notebook import Notebook
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "01_collectives.ipynb"
MEGABYTES, TURNS = 64, 7
AIMS = {2: 0.7, 4: 1.0}  # by ranks: at least so many times as fast as gloo
TITLE = f"all-reduce of {MEGABYTES} MB"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    ring = Notebook(NOTEBOOK).definitions()["ring_all_reduce"]
    group = Group(TITLE)
    for ranks, aim in AIMS.items():
        with group.attempt(*(f"{name}, {ranks} ranks" for name in ("gloo", "ring"))):
            times = run(take_turns, ring, ranks=ranks, device="cpu", timeout=300, record=False).values[0]
            medians = {name: statistics.median(taken) for name, taken in times.items()}
            group.rows.extend(Row(f"{name}, {ranks} ranks", taken) for name, taken in medians.items())
            speed, best = medians["gloo"] / medians["ring"], min(times["gloo"]) / min(times["ring"])
            group.remarks.append(
                f"{ranks} ranks: the ring is {speed:.2f} × as fast as gloo, {best:.2f} × at best (aim: at least {aim})"
            )
    return group


def take_turns(ring):
    """Returns the seconds that gloo's all-reduce and `ring` took on the slowest rank, each in its turns."""
    x = torch.ones(MEGABYTES * 1_000_000 // 4)
    times = {"gloo": [], "ring": []}
    for _ in range(TURNS + 1):
        for name, all_reduce in {"gloo": dist.all_reduce, "ring": ring}.items():
            x.fill_(1)
            times[name].append(slowest(all_reduce, x))
            assert (x == dist.get_world_size()).all(), f"{name} gave a wrong sum"
    return {name: taken[1:] for name, taken in times.items()}


def slowest(all_reduce, x):
    dist.barrier()
    start = time.perf_counter()
    all_reduce(x)
    taken = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()
