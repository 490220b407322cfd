"""The same run on another cluster: a recording replayed as its size, the machine and the network change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist

from distlab.demos.course import built_in
from distlab.events import Span
from distlab.machine.hardware import Link, Machine
from distlab.machine.machines import h100_node
from distlab.machine.replay import replay
from distlab.machine.units import quantity
from distlab.models import MLP, mlp
from distlab.ranks.launch import run
from distlab.ranks.watching.spans import span
from distlab.recording import Recording
from distlab.show.board import Board
from distlab.show.chart import draw_lanes
from distlab.show.lanes import lanes_of
from distlab.show.look import WIDTH
from distlab.show.panel import Panel, choice

_HEIGHT = 3.6
_AREA = (0.88, 0.5, WIDTH - 1.32, _HEIGHT - 0.65)
STEP = "a step"  # a span of this name, if there is one, is all that is shown
_TIMES = {"×1": 1, "×100": 100, "×10⁴": 10**4, "×10⁶": 10**6}
_FLOPS = {"1 TFLOP/s": 1e12, "10 TFLOP/s": 1e13, "100 TFLOP/s": 1e14, "400 TFLOP/s": 4e14}
_LATENCIES = {"1 µs": 1e-6, "5 µs": 5e-6, "20 µs": 2e-5, "50 µs": 5e-5, "1 ms": 1e-3}
_BANDWIDTHS = {
    "10G Ethernet": 1.25e9,
    "100G Ethernet": 12.5e9,
    "InfiniBand HDR": 25e9,
    "InfiniBand NDR": 50e9,
}


def cluster(recordings: Mapping[str, Recording] | Recording | None = None) -> Panel:
    """Replays recordings, by their names, on a cluster to try: GPUs in nodes, NVLink inside a node, a network between.

    Without an argument it takes four runs of the labs' own code. Raises ValueError if there are none.
    """
    if isinstance(recordings, Recording):
        recordings = {"your run": recordings}
    known = of_the_labs() if recordings is None else {name: _given(made) for name, made in recordings.items()}
    if not known:
        raise ValueError("cluster() needs at least one recording, as in cluster(r.recording).")
    controls = {
        "name": choice("run", list(known), next(iter(known))),
        "flops": choice("FLOPs", _TIMES, 10**6),
        "bytes": choice("bytes", _TIMES, 10**4),
        "speed": choice("a GPU", _FLOPS, 1e14),
        "nodes": choice("nodes", {"1": 1, "2": 2, "4": 4}, 2),
        "latency": choice("latency", _LATENCIES, 5e-6),
        "bandwidth": choice("network", _BANDWIDTHS, 50e9),
    }
    return Panel(lambda name, **setting: draw(known[name](), name, **setting), controls)


def _given(recording: Recording) -> Callable[[], Recording]:
    return lambda: recording


def of_the_labs() -> dict[str, Callable[[], Recording]]:
    """Runs of what the labs have built, by name; each is made on real ranks when it is first asked for."""
    return {
        "data parallel": data_parallel_step,
        "pipeline": pipeline_step,
        "tensor parallel": tensor_parallel_step,
        "ring all-reduce": ring_all_reduce,
    }


@cache
def data_parallel_step() -> Recording:
    """A step of lab 02's data parallelism."""
    lab = built_in("data_parallel")

    def step():
        model = mlp(64, 64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x_bD, y_b = lab.split_batch(*lab.first_rows(256))
        with span(STEP):
            with span("F and B"):
                lab.compute_gradients(model, x_bD, y_b)
            with span("average"):
                lab.average_gradients(model, len(y_b))
            with span("update"):
                lab.update(optimizer)

    return run(step, ranks=4).recording


@cache
def pipeline_step() -> Recording:
    """A step of lab 07's 1F1B, with 8 micro-batches."""
    lab = built_in("pipeline")
    schedule = lab.with_messages(lab.for_all(lab.one_f_one_b_schedule, 4, 8), early=True)
    return run(lab.pipeline_step, schedule, 64, 8, lab.AsyncMail, ranks=4).recording


@cache
def tensor_parallel_step() -> Recording:
    """Forward and backward of lab 08's MLP, cut over the ranks."""
    lab = built_in("tensor_parallel")

    def step():
        part, x_BTD = lab.ParallelMLP(MLP(64)), torch.ones(4, 16, 64, requires_grad=True)
        with span(STEP):
            with span("F"):
                y_BTD = part(x_BTD)
            with span("B"):
                y_BTD.sum().backward()

    return run(step, ranks=4).recording


@cache
def ring_all_reduce() -> Recording:
    """Lab 01's ring."""
    all_reduce = built_in("collectives").ring_all_reduce
    return run(lambda: all_reduce(torch.full((250_000,), float(dist.get_rank()))), ranks=4).recording


def machine(ranks: int, speed: float, nodes: int, latency: float, bandwidth: float) -> Machine:
    """GPUs of ``speed`` FLOP/s, shared out over nodes; NVLink inside, between them a network with ``latency`` seconds a
    message and ``bandwidth`` bytes a second each way. Work is charged for its FLOPs alone: what moves data would take
    a share of the time at a lab's size that it does not take at a large model's."""
    network = Link(latency, bandwidth, "network")
    return replace(
        h100_node.flops_only(),
        name=f"{nodes} node{'s' if nodes > 1 else ''}",
        achieved_flops=speed,
        ranks_per_node=-(-ranks // nodes),
        between=network,
        collectives="hierarchical" if 1 < nodes < ranks else "ring",
    )


def draw(
    recording: Recording, name: str, flops: int, bytes: int, speed: float, nodes: int, latency: float, bandwidth: float
) -> Board:
    """The recording's timeline on one cluster, its FLOPs and bytes multiplied."""
    ranks = recording.world_size
    nodes = min(nodes, ranks)
    here = machine(ranks, speed, nodes, latency, bandwidth)
    timeline = replay(recording.scaled(flops=flops, bytes=bytes), here)
    if any(event.name == STEP for event in recording.events(Span)):
        timeline = timeline.during(STEP)
    wall, unit = _readable(timeline.wall)
    board = Board(f"{name}, {ranks} ranks: {quantity(timeline.wall, 's')} on {here.name}", _HEIGHT)
    shown, ends = (timeline.begin, timeline.end), (f"0 {unit}", f"{wall:.4g} {unit}")
    draw_lanes(board, _AREA, list(lanes_of(timeline).values()), shown, ends)
    seconds = timeline.busy, timeline.exposed, timeline.hidden
    busy, exposed, hidden = (sum(of_ranks) / ranks / timeline.wall for of_ranks in seconds)
    inside = f"NVLink inside a node of {here.ranks_per_node}" if here.ranks_per_node > 1 else "one GPU a node"
    between = f"{quantity(bandwidth, 'B/s')} and {quantity(latency, 's')} between nodes" if nodes > 1 else "no network"
    board.say(
        f"Modelled on {here.name}: {quantity(speed, 'FLOP/s')} a GPU (work costs nothing else), {inside}, {between}.",
        f"{quantity(timeline.wall, 's')} in all. On average a rank computes {busy:.0%} of it; its communication is in "
        f"the way for {exposed:.0%} and hidden for {hidden:.0%}; the rest it waits.",
        f"As if every FLOP were {flops:,} and every byte {bytes:,} of those recorded.",
    )
    return board


def _readable(seconds: float) -> tuple[float, str]:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return seconds / size, unit
    return seconds * 1e9, "ns"
