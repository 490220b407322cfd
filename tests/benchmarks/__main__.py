"""`python -m tests.benchmarks [name ...]` measures side by side, in one run, and prints one table.

Each group of it is printed as soon as it is measured, with ratios.
Nothing here asserts a time. What fails is said in its row, and makes the exit status 1. To add a group to the table,
write a module with a function `measure() -> Group`, or a list of them, and name it in BENCHMARKS.
"""

import argparse
import sys

from tests.benchmarks.apart import measured
from tests.benchmarks.table import heading, part

BENCHMARKS = {
    "cell": "tests.benchmarks.cell_to_result",
    "import": "tests.benchmarks.import_time",
    "checks": "tests.benchmarks.checks",
    "lab": "tests.benchmarks.lab_run_all",
    "ranks": "tests.benchmarks.two_ranks",
    "recording": "tests.benchmarks.recorded_step",
    "spans": "tests.benchmarks.recorded_spans",
    "operator": "tests.benchmarks.counted_operator",
    "replay": "tests.benchmarks.replay_speed",
    "ring": "tests.benchmarks.ring_all_reduce",
    "layers": "tests.benchmarks.layer_partition",
    "tensor": "tests.benchmarks.tensor_parallel_step",
    "pipeline": "tests.benchmarks.pipeline_step",
    "zero": "tests.benchmarks.zero_step",
    "experts": "tests.benchmarks.expert_parallel_step",
    "redraw": "tests.benchmarks.redraw",
}


def main(arguments=None):
    """Prints the table; returns 1 if something in it failed, else 0."""
    known = ", ".join(BENCHMARKS)
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description="Measures distlab against its peers.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"what to measure (all, if none): {known}")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no {', '.join(unknown)}; there is {known}")
    print(heading())
    has_failed = False
    for name in names or BENCHMARKS:  # each as soon as it is measured: all of them take half an hour
        for group in measured(name, BENCHMARKS[name]):
            print(part(group), flush=True)
            has_failed |= group.failed
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
