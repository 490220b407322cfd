"""Named machines, each with where its numbers come from; and this computer, measured.

Evidence, as in each ``source``: "read" in a data sheet or paper, "quoted" by several who read it, "from memory" where
nobody has looked it up: good for orders of magnitude, not for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from distlab.machine.hardware import ALGORITHMS, FREE_LINK, Link, Machine

__all__ = ["ALGORITHMS", "FREE_LINK", "Link", "Machine", "PROFILES", "measure"]

_A100 = (
    "peak 312 TFLOP/s (dense 16 bit) and memory 2,039 GB/s: A100-SXM data sheet, read; achieved 140 TFLOP/s: "
    "Narayanan et al. 2021, Table 1 (135 to 163), quoted; 5 µs to launch an operator, latencies: from memory"
)
_H100 = (
    "peak 989 TFLOP/s (dense 16 bit) and memory 3,350 GB/s: Austin et al., How to Scale Your Model, quoted; achieved "
    "400 TFLOP/s: Llama 3 paper, Table 4 (380 to 430), read; 5 µs to launch an operator, latencies: from memory"
)


def _reached_ring(ranks: int, large: tuple[float, float], small: tuple[float, float], name: str) -> Link:
    """The link by which a ring's all-reduce takes as long as was measured for two sizes, large and small.

    Each is a size n in bytes and its bus bandwidth, 2(p−1)/p · n / seconds. So the latency is what a step of NCCL's
    ring costs between those sizes; far below them NCCL takes other algorithms, and is faster than this.
    """
    share = 2 * (ranks - 1) / ranks
    (most, seconds), (least, fewer) = ((share * size, share * size / busy) for size, busy in (large, small))
    rate = (most - least) / (seconds - fewer)
    return Link((fewer - least / rate) / (2 * (ranks - 1)), rate, name)


a100_node = Machine(
    name="A100 node",
    peak_flops=312e12,
    achieved_flops=140e12,
    memory_bytes_per_s=2039e9,
    operator_overhead_s=5e-6,
    ranks_per_node=8,
    inside=Link(3e-6, 300e9, "NVLink"),
    between=Link(5e-6, 25e9, "InfiniBand HDR"),
    reached_inside=Link(3e-6, 232e9, "NVLink"),
    reached_between=Link(5e-6, 24e9, "InfiniBand HDR"),
    source=f"{_A100}; NVLink 300 GB/s each way: Austin et al., quoted; HDR 200 Gbit/s, 25 GB/s, by definition; "
    "reached: 232 GB/s of bus bandwidth in a node, 24 by one card: github.com/NVIDIA/nccl/issues/1048, read",
)
h100_node = Machine(
    name="H100 node",
    peak_flops=989e12,
    achieved_flops=400e12,
    memory_bytes_per_s=3350e9,
    operator_overhead_s=5e-6,
    ranks_per_node=8,
    inside=Link(3e-6, 450e9, "NVLink"),
    between=Link(5e-6, 50e9, "InfiniBand NDR"),
    reached_inside=_reached_ring(8, (10e9, 370e9), (58.7e6, 150e9), "NVLink"),
    reached_between=Link(5e-6, 47e9, "InfiniBand NDR"),
    source=f"{_H100}; NVLink 450 and NDR 50 GB/s each way: Austin et al., quoted; reached: an all-reduce on 8 GPUs has "
    "370 GB/s of bus bandwidth at 10 GB and 150 at 58.7 MB (Austin et al., quoted; NCCL's maintainer says 370 too, "
    "github.com/NVIDIA/nccl-tests/issues/212, read), a card 46 to 48 (the same, issues/290, read)",
)
pcie_node = replace(
    a100_node,
    name="A100 node on PCIe",
    inside=Link(8e-6, 25e9, "PCIe 4.0 x16"),
    source=f"the same GPUs: {_A100}; PCIe 4.0 x16 carries 32 GB/s each way, by definition, about 25 of it "
    "reached, 8 µs: from memory",
    reached_inside=None,
)
a100_cluster = replace(a100_node, name="A100 cluster", collectives="hierarchical")
h100_cluster = replace(h100_node, name="H100 cluster", collectives="hierarchical")

# One GPU a node: a port that several ranks of a node share is not modelled.
ethernet_100g = replace(
    a100_node,
    name="A100s on 100 Gbit/s Ethernet",
    ranks_per_node=1,
    inside=Link(10e-6, 12.5e9, "100 Gbit/s Ethernet"),
    between=Link(10e-6, 12.5e9, "100 Gbit/s Ethernet"),
    reached_inside=None,
    reached_between=None,
    source=f"{_A100}; 100 Gbit/s is 12.5 GB/s each way, by definition; 10 µs (RDMA): from memory",
)
ethernet_10g = replace(
    ethernet_100g,
    name="A100s on 10 Gbit/s Ethernet",
    inside=Link(30e-6, 1.25e9, "10 Gbit/s Ethernet"),
    between=Link(30e-6, 1.25e9, "10 Gbit/s Ethernet"),
    source=f"{_A100}; 10 Gbit/s is 1.25 GB/s each way, by definition; 30 µs (TCP): from memory",
)

# The A100 node above, with every ratio kept as its work shrinks to a lab's (tests/machine/test_machines.py does the
# sums): a rank's 2,048 tokens of a model of width 4,096 in 16 bits become 32 rows of width 64 in 32 bits, a bucket of
# 25 MB becomes the 19,240 bytes of lab 02's gradients, and 140 TFLOP/s become 1 GFLOP/s, so that steps take about a
# millisecond.
#   link: communication / computation of data parallelism is about (bytes an element) F / (3 tokens B)
#   memory: moving / multiplying in a layer grows as (bytes an element) F / (width M)
#   overhead: the same share of one width × width product; latency: the same share of the bucket
classroom = Machine(
    name="classroom",
    peak_flops=2.2e9,
    achieved_flops=1e9,
    memory_bytes_per_s=1.9e9,
    operator_overhead_s=3e-6,
    ranks_per_node=8,
    inside=Link(2.5e-6, 275e6),
    between=Link(4e-6, 23e6),
    source="the A100 node's ratios of computation, memory, overhead and communication, at the size of a lab: "
    "2,048 tokens of width 4,096 in 16 bits become 32 rows of width 64 in 32 bits, a bucket of 25 MB becomes 19 kB",
)

PROFILES = (
    classroom,
    a100_node,
    h100_node,
    pcie_node,
    a100_cluster,
    h100_cluster,
    ethernet_100g,
    ethernet_10g,
)


def measure(run: Callable) -> Machine:
    """Measures this computer: two ranks that multiply at once, and send each other messages by gloo.

    ``run`` is :func:`distlab.run`; it is handed in because this room knows no processes. Its ranks are assumed to
    share this computer, however many a recording has. Takes a few seconds, and the numbers vary as the load does.
    """
    from distlab.machine import measuring

    ranks = run(measuring.one_of_two, ranks=2, device="cpu", record=False).values
    rates = {name: median(rank[name] for rank in ranks) for name in ranks[0]}
    link = Link(rates["latency_s"], rates["link_bytes_per_s"], "gloo")
    return Machine(
        name="this computer",
        peak_flops=rates["peak_flops"],
        achieved_flops=rates["achieved_flops"],
        memory_bytes_per_s=rates["memory_bytes_per_s"],
        operator_overhead_s=rates["operator_overhead_s"],
        ranks_per_node=1024,
        inside=link,
        between=link,
        source="measured here on two ranks at once; the peak is the best of the products that were timed",
    )
