"""Import: what distlab adds to torch."""

import statistics

from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import fresh_python, last_line

REPEATS = 7
SCRIPT = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import distlab
print([middle - start, time.perf_counter() - start])
"""


def measure():
    pairs = [last_line(fresh_python("-c", SCRIPT)) for _ in range(REPEATS)]
    added = statistics.median(both - torch for torch, both in pairs)
    torch, both = (statistics.median(column) for column in zip(*pairs, strict=True))
    rows = [Row("import torch", torch), Row("import torch, then distlab", both)]
    return Group("import", rows, [f"distlab adds {added:.3f} s (aim: at most 0.08 s)"])
