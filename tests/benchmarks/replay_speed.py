"""Replay: generated recordings of 1,024 ranks with about 1,000 events each."""

import statistics

from distlab.events import Compute, Done, Message, Wait
from distlab.machine.machines import h100_cluster
from distlab.machine.replay import replay
from distlab.recording import Recording
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import seconds

RANKS, REPEATS = 1024, 5
AIMS = {"an all-reduce a step": 1.6, "a ring of isend and irecv": 1.4}  # million events a second


def measure():
    recordings = {"an all-reduce a step": generate(collective, 250), "a ring of isend and irecv": generate(ring, 142)}
    num_events = {name: sum(map(len, recording.ranks)) for name, recording in recordings.items()}
    times = {name: [] for name in recordings}
    for _ in range(REPEATS):
        for name, recording in recordings.items():
            times[name].append(seconds(lambda recording=recording: replay(recording, h100_cluster)))
    rows = [Row(name, statistics.median(taken)) for name, taken in times.items()]
    group = Group(f"replay: {RANKS:,} ranks × 1,000 events", rows)
    for name, taken in times.items():
        rates = [num_events[name] / 1e6 / time for time in (statistics.median(taken), min(taken))]
        said = "{}: {:.2f} million events/s, {:.2f} at best (aim: at least {})"
        group.remarks.append(said.format(name, *rates, AIMS[name]))
    return group


def generate(step, num_steps):
    """Returns a recording of ranks that all do `step` so often, none of them equally fast."""
    return Recording([[event for k in range(num_steps) for event in step(rank, k)] for rank in range(RANKS)])


def work(rank, k):
    return Compute(1e12 + (rank * 7919 + k * 104_729) % 1000 * 1e9)


def collective(rank, k):
    return [work(rank, k), Message(k, "all_reduce", bytes=4 << 20), Wait(k), Done(k)]


def ring(rank, k):
    send = Message(2 * k, "send", peer=(rank + 1) % RANKS, bytes=4 << 20, is_async=True)
    receive = Message(2 * k + 1, "recv", peer=(rank - 1) % RANKS, bytes=4 << 20, is_async=True)
    waits = [event for id in (send.id, receive.id) for event in (Wait(id), Done(id))]
    return [work(rank, k), send, receive, *waits]
