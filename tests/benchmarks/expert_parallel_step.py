"""A step of a layer of experts spread over ranks, lab 09's solution, against all experts on every rank."""

import statistics
import time

import torch
import torch.distributed as dist

from distlab import from_lab, run
from distlab.traffic import count_traffic
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "09_mixture_of_experts.ipynb"
RANKS, WIDTH, EXPERTS, TOKENS, STEPS = 2, 256, 8, 2048, 9
TITLE = f"step of {EXPERTS} experts of width {WIDTH} on {RANKS} ranks, {TOKENS:,} tokens each, top-1, one thread a rank"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    lab = from_lab("mixture_of_experts", solution=True)
    times = run(take_turns, lab, ranks=RANKS, device="cpu", timeout=300, record=False).values[0]
    group = Group(TITLE, [Row(name, statistics.median(taken)) for name, taken in times.items()])
    ratio = group.ratio("expert parallel (lab 09)", to="all experts on every rank")
    recorded = {name: run(one_step, lab, name, ranks=RANKS, device="cpu", timeout=300) for name in WAYS}
    sent = {name: max(count_traffic(r.recording).sent()) / 1e6 for name, r in recorded.items()}
    held = {name: r.memory().peaks[0]["parameters"] / 1e6 for name, r in recorded.items()}
    group.remarks.append(f"spread, a step takes {ratio:.2f} × as long; timings vary with the load and are not asserted")
    for name in WAYS:
        group.remarks.append(f"{name}: {sent[name]:.1f} MB sent a rank, {held[name]:.1f} MB of parameters held")
    return group


def tokens():
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank())).requires_grad_()


def with_copies(lab):
    """Returns a step with all experts on every rank: every gradient is averaged."""
    layer, x = lab.MoE(WIDTH, EXPERTS, 1, 1.25), tokens()

    def step():
        (layer(x).square().mean() + layer.balance_loss).backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    return step


def with_experts_spread(lab):
    """Returns a step of the lab's own: tokens travel, and the gate's gradient is averaged."""
    layer, x = lab.ExpertParallelMoE(WIDTH, EXPERTS, 1, 1.25), tokens()

    def step():
        (layer(x).square().mean() + layer.balance_loss).backward()
        lab.average_moe_gradients(layer)

    return step


WAYS = {"all experts on every rank": with_copies, "expert parallel (lab 09)": with_experts_spread}


def one_step(lab, name):
    WAYS[name](lab)()


def take_turns(lab):
    """Returns the seconds of a step by name, the ways taking turns; all ranks begin and end together."""
    torch.set_num_threads(1)
    steps = {name: make(lab) for name, make in WAYS.items()}
    times = {name: [] for name in steps}
    for _ in range(STEPS + 1):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            times[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in times.items()}
