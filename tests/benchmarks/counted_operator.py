"""Counting: what full recording adds to an operator, and how much of that any TorchDispatchMode would."""

import contextlib
import statistics
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distlab import run
from distlab.ranks.watching.counting import OperatorCounter
from tests.benchmarks.table import Group, Row

SIZE, CALLS, TURNS = 8, 200, 200
SHOWN = 100_000  # operators a row, for one takes microseconds


class Bare(TorchDispatchMode):
    """Sees every operator and does nothing with it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


WAYS = {"no mode": contextlib.nullcontext, "a mode that does nothing": Bare, "full recording": OperatorCounter}


def measure():
    (times,) = run(times_of_an_operator, ranks=1, device="cpu", timeout=300, record=False).values
    rows = [Row(name, SHOWN * statistics.median(taken)) for name, taken in times.items()]
    group = Group(f"{SHOWN:,} operators of three kinds: x @ y, + y, relu of {SIZE} × {SIZE}", rows)
    for name in ("no mode", "a mode that does nothing"):
        added = [1e6 * (counted - other) for counted, other in zip(times["full recording"], times[name], strict=True)]
        best = 1e6 * (min(times["full recording"]) - min(times[name]))
        aim = " (aim: at most 5)" if name == "no mode" else ""
        median = statistics.median(added)
        group.remarks.append(f"an operator: {median:+.2f} µs over {name}, {best:+.2f} at best{aim}")
    return group


def times_of_an_operator():
    """Returns seconds of this process's CPU time an operator, turn by turn, by the way it is run."""
    x, y = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    times = {name: [] for name in WAYS}
    for _ in range(TURNS):
        for name, way in WAYS.items():
            with way():
                start = time.process_time()
                for _ in range(CALLS):
                    (x @ y + y).relu()
                times[name].append((time.process_time() - start) / (3 * CALLS))
    return times
