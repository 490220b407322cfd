"""Recording: a step of training on four ranks that is recorded, against the same step that is not."""

import statistics
import sys
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from distlab import run
from tests.benchmarks.table import Group, Row

RANKS, WIDTH, LAYERS, BATCH, STEPS, TURNS = 4, 512, 3, 128, 15, 15


@dataclass
class Way:
    """A way to record, the aims for it, and the seconds of a step, turn by turn: by the clock and of all CPU time."""

    record: bool | str
    aim: str = "the noise"
    cpu_aim: str = "the noise"
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take_turn(self):
        start = time.process_time()
        ranks = run(times_of_a_step, ranks=RANKS, device="cpu", timeout=300, record=self.record).values
        self.wall.append(ranks[0][0])
        self.cpu.append((time.process_time() - start) / STEPS + sum(cpu for _, cpu in ranks))

    def compare(self, plain):
        def ratio(mine, others):
            return statistics.median(a / b for a, b in zip(mine, others, strict=True))

        wall, cpu, best = ratio(self.wall, plain.wall), ratio(self.cpu, plain.cpu), min(self.wall) / min(plain.wall)
        return (
            f"{wall:.2f} × turn by turn, {best:.2f} × at best ({self.aim}), {cpu:.2f} × the CPU time ({self.cpu_aim})"
        )


def measure():
    plain = Way(False)
    ways = {
        "not recorded": plain,
        "not recorded, again": Way(False),
        'record="messages"': Way("messages", "aim: at most 1.05", "aim: at most 1.02"),
        "record=True": Way(True, "aim: at most 1.10", "aim: at most 1.06"),
    }
    for turn in range(TURNS):
        print(f"\r  turn {turn + 1} of {TURNS}", end="", file=sys.stderr, flush=True)
        for way in ways.values():
            way.take_turn()
    print(file=sys.stderr)
    rows = [Row(name, statistics.median(way.wall)) for name, way in ways.items()]
    remarks = [f"{name}: {way.compare(plain)}" for name, way in ways.items() if way is not plain]
    title = f"one step on {RANKS} ranks: MLP of width {WIDTH}, batch {BATCH}, {2 * LAYERS} all-reduces, one a parameter"
    return Group(title, rows, remarks)


def times_of_a_step():
    """Returns this rank's median seconds of a step, which all end together, and its CPU time a step."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model, x, times = nn.Sequential(*layers), torch.randn(BATCH, WIDTH), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step(model, x, optimizer)
    cpu = time.process_time()
    for _ in range(STEPS):
        start = time.perf_counter()
        step(model, x, optimizer)
        times.append(time.perf_counter() - start)
    return statistics.median(times), (time.process_time() - cpu) / STEPS


def step(model, x, optimizer):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
