"""Cell to result: four ranks, a process group, one all-reduce; and the same with what else starts ranks."""

import statistics
import sys
from contextlib import ExitStack

from tests.benchmarks.peer import Peer
from tests.benchmarks.table import Group, Row, in_a_line

# Each peer's script in peers/, and how many calls follow its first.
PEERS = {
    "plain fork": ("plain_fork", 15),
    "distlab.run": ("distlab_run", 15),
    "accelerate notebook_launcher": ("notebook_launcher", 7),
    "torch.multiprocessing.spawn": ("spawn", 3),
    "torchrun": ("torchrun", 3),
}


def measure():
    with ExitStack() as stack:
        peers = {name: stack.enter_context(Peer(script)) for name, (script, _) in PEERS.items()}
        seconds, failures = take_turns(peers)
    return with_remarks([row(name, seconds[name], failures.get(name, "")) for name in PEERS])


def row(name, seconds, failure):
    if failure:
        return Row(name, failure=failure)
    first, *warm = seconds
    return Row(name, statistics.median(warm), first)


def take_turns(peers):
    """Has each peer called in turn, so that a slow minute of the computer meets them all.

    Returns seconds by name, the first call's before the others'; and of those that failed, what they said.
    """
    seconds, failures = {name: [] for name in peers}, {}
    most = 1 + max(calls for _, calls in PEERS.values())
    for turn in range(most):
        print(f"\r  turn {turn + 1} of {most}", end="", file=sys.stderr, flush=True)
        for name, (_, calls) in PEERS.items():
            if turn <= calls and name not in failures:
                try:
                    seconds[name].append(peers[name].call())
                except RuntimeError as error:
                    print(f"\n{error}", file=sys.stderr)
                    failures[name] = in_a_line(error)
    print(file=sys.stderr)
    return seconds, failures


def with_remarks(rows):
    group = Group("cell to result: 4 ranks, process group, one all-reduce, warm", rows)
    run = group.ratio("distlab.run", to="plain fork")
    spawn = group.ratio("torch.multiprocessing.spawn", to="distlab.run")
    group.remarks.append(f"distlab.run takes {run:.2f} × plain fork (aim: at most 1.25)")
    group.remarks.append(f"spawn takes {spawn:.0f} × distlab.run (aim: at least 15)")
    return group
