"""Values that two public books on training at scale print, beside what distlab.machine gives.

``python -m tests.machine.books`` writes docs/models.md; a test holds the two together, and each value to its print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.machine import collectives, costs
from distlab.machine.hardware import FREE_LINK, Link, Machine
from distlab.machine.machines import h100_node
from distlab.machine.memory import Recipe, activation_bytes, gated_activation_bytes, recipe
from distlab.machine.model_shapes import LLAMA_70B, Shape
from distlab.machine.replay import replay
from distlab.recording import History, Recording
from tests.machine.recordings import FREE, gpipe, pipeline

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FLOPS = 990e12  # of an H100, as the books take it
INSIDE, BETWEEN = Link(0.0, 450e9), Link(0.0, 50e9)  # a GPU's, each way
LINE_RATE = Machine("H100s", FLOPS, FLOPS, 3350e9, 0.0, 8, INSIDE, BETWEEN, "hierarchical")
OVERLAPPED = replace(LINE_RATE, overlaps_levels=True)
LLAMA_13B = Shape("LLaMA-2 13B", 40, 5120, 40, 13824, 32000)
WIDE_HEADS = Shape("64 layers", 64, 4096, 32, 16384, 32128, key_heads=8, head_width=256, is_tied=True)
V5E_FLOPS = 1.97e14  # of a TPU v5e, a second


@dataclass(frozen=True)
class Value:
    """A printed value, what distlab gives, how far apart they may be, and why they differ, if they do.

    ``ours`` is in the unit of ``printed``. Where a book is off, or takes something else to be true, ``expected`` is
    what is right under what distlab takes to be true.
    """

    row: int
    source: str
    question: str
    printed: float
    unit: str
    ours: Callable[[], float]
    expected: float | None = None
    within: float = 0.005
    because: str = ""


TORUS = Machine("TPUs in a ring", 1.0, 1.0, math.inf, 0.0, 4, Link(0.0, 45e9), FREE_LINK, "two_way_ring")


def gpt_3(recompute: str) -> float:
    return activation_bytes(2048, 1, 12288, 96, recompute)


def ragged() -> float:
    """An all-to-all in a node where each rank sends half of its parts, its own among them, over the whole one."""
    parts = [[1.0 if (j - i) % 8 < 4 else 0.0 for j in range(8)] for i in range(8)]
    every = [[1.0] * 8] * 8
    half, whole = (collectives.all_to_all(each, range(8), LINE_RATE) for each in (parts, every))
    return half / whole


def all_gather(bytes: float, ranks: int, machine: Machine) -> float:
    return collectives.seconds("all_gather", bytes, range(ranks), machine)


def all_reduce(bytes: float, ranks: int, machine: Machine) -> float:
    return collectives.seconds("all_reduce", bytes, range(ranks), machine)


def product(rows: int, inner: int, columns: int) -> float:
    """Seconds of a 16-bit product on an H100 that reaches its peak."""
    bytes = 2 * (rows * inner + inner * columns + rows * columns)
    return replay(Recording([History().compute(2.0 * rows * inner * columns, bytes=bytes).events]), LINE_RATE).wall


def hiding_tokens(machine: Machine, ranks: int) -> float:
    """Tokens a GPU whose forward and backward pass of a matrix take as long as the all-reduce of its gradient.

    Of F × D weights: 4 FLOPs a weight and token in a backward pass, 2 bytes a weight of gradient.
    """
    return all_reduce(2.0, ranks, machine) / (4 / FLOPS)


def halved_product() -> float:
    """The least inner dimension D of a product cut along it on two TPU v5e whose work outlasts the halves' exchange."""

    def lasts(inner: int, rows: int = 1024, columns: int = 8192) -> bool:
        work = History().compute(1.0 * rows * inner * columns)
        halves = [History().compute(0, name="both"), History()]
        exchange = [history.issue("send", 2 * rows * columns, peer=1 - rank) for rank, history in enumerate(halves)]
        for rank, (history, sent) in enumerate(zip(halves, exchange)):
            history.recv(1 - rank, 2 * rows * columns).wait(sent)
        wire = Machine("TPU v5e", V5E_FLOPS, V5E_FLOPS, math.inf, 0.0, 2, Link(0.0, 4.5e10), FREE_LINK)
        words = replay(Recording([history.events for history in halves]), wire)
        return replay(Recording([work.events]), wire).wall > words.wall

    return next(inner for inner in range(8000, 9000) if lasts(inner))


def most_tensor_parallel() -> float:
    """The t at which an MLP's all-gather and reduce-scatter take as long as its work, less 1, on H100s in a node.

    Words over work is (t − 1)C/(F·W): asked of one t, the rest follows.
    """
    width, hidden, tokens, t = 8192.0, 28672.0, 1024.0, 8
    words = all_gather(2 * tokens * width, t, LINE_RATE)
    words += collectives.seconds("reduce_scatter", 2 * tokens * width, range(t), LINE_RATE)
    return (t - 1) / (words / (4 * tokens * width * hidden / t / FLOPS))


def words_over_work(words: float, flops: float) -> float:
    return words / (flops / FLOPS)


def decode_ms(parameters: float, cache: float, rows: int, chips: int, number: int, memory: float = 8.1e11) -> float:
    """Milliseconds of a decoding step on TPUs v5e: caches are read, then products are the larger of work and reading.

    Of a model of so many parameters of ``number`` bytes, with a cache of ``cache`` bytes a row.
    """
    step = History().compute(0, bytes=cache * rows / chips)
    step.compute(2.0 * parameters * rows / chips, bytes=number * parameters / chips)
    tpu = Machine("TPU v5e", V5E_FLOPS, V5E_FLOPS, memory, 0.0, chips, FREE_LINK, FREE_LINK)
    return 1e3 * replay(Recording([step.events]), tpu).wall


def days(flops: float, chips: int, peak: float, reached: float) -> float:
    machine = Machine("a chip", peak, peak * reached, math.inf, 0.0, 8, FREE_LINK, FREE_LINK)
    return replay(Recording([History().compute(flops / chips).events]), machine).wall / 86400


def bubble(stages: int, micro_batches: int) -> float:
    """GPipe's bubble over the time that the work alone takes."""
    timeline = replay(pipeline(gpipe(stages, micro_batches)), FREE)
    return timeline.wall / timeline.busy[0] - 1


def bus_bandwidth(bytes: float, machine: Machine) -> float:
    """GB/s of an all-reduce on a node, as NCCL's tests give it."""
    return 2 * 7 / 8 * bytes / all_reduce(bytes, 8, machine) / 1e9


ONE_RING = "a ring moves (p−1)/p of the bytes; the book drops that factor"
ADDED = "levels overlap, as in the book; by default distlab adds them"
TWICE = "the book divides elements, of two bytes, by bytes a second"
SB, US = "SB", "US"
B = 1e9
MB = 2**20

VALUES = [
    Value(
        1, f"{SB}, GPUs", "all-gather of 33.6 MB on 8 H100s", 65, "µs", lambda: 1e6 * all_gather(32 * MB, 8, LINE_RATE)
    ),
    Value(
        1,
        f"{SB}, GPUs",
        "all-gather of 537 MB on 8 H100s",
        1.04,
        "ms",
        lambda: 1e3 * all_gather(512 * MB, 8, LINE_RATE),
    ),
    Value(
        2,
        f"{SB}, GPUs",
        "all-to-all of 1 GB in a node",
        1e3 * B * 7 / (64 * 450e9),
        "ms",
        lambda: 1e3 * collectives.seconds("all_to_all", B / 8, range(8), LINE_RATE),
    ),
    Value(
        2,
        f"{SB}, GPUs",
        "the same with 4 of 8 parts empty, over the whole",
        0.5,
        "",
        ragged,
        expected=3 / 7,
        because="a rank's own part is among the four that are not empty, and takes no link",
    ),
    Value(
        3,
        f"{SB}, GPUs",
        "all-to-all of 1 GB over 2 nodes",
        0.625,
        "ms",
        lambda: 1e3 * collectives.seconds("all_to_all", B / 16, range(16), LINE_RATE),
    ),
    Value(
        4,
        f"{SB}, GPUs",
        "all-gather over 32 nodes: bytes a second",
        413,
        "GB/s",
        lambda: 1 / all_gather(B, 256, OVERLAPPED),
        because=ADDED,
    ),
    Value(
        5,
        f"{SB}, GPUs",
        "all-gather over 2 nodes: bytes a second",
        514,
        "GB/s",
        lambda: 1 / all_gather(B, 16, OVERLAPPED),
        because=ADDED,
    ),
    Value(
        6,
        f"{SB}, GPUs",
        "all-reduce over 32 nodes: half of that",
        413,
        "GB/s",
        lambda: 2 / all_reduce(B, 256, OVERLAPPED),
        because=ADDED,
    ),
    Value(
        6,
        f"{SB}, GPUs",
        "the same with levels added",
        413,
        "GB/s",
        lambda: 2 / all_reduce(B, 256, LINE_RATE),
        expected=229.0,
        because="the book lets the levels overlap",
    ),
    Value(
        7,
        f"{SB}, GPUs",
        "bus bandwidth, measured, 10 GB on 8 H100s",
        370,
        "GB/s",
        lambda: bus_bandwidth(10e9, h100_node.reached()),
        because="h100_node itself is at line rate: 450",
    ),
    Value(
        7,
        f"{SB}, GPUs",
        "bus bandwidth, measured, 58.7 MB on 8 H100s",
        150,
        "GB/s",
        lambda: bus_bandwidth(58.7e6, h100_node.reached()),
        because="both are what reached() was made from",
    ),
    Value(
        8,
        f"{SB}, sharding",
        "all-gather of 2.1 MB on a ring of 4 TPUs, both ways",
        23,
        "µs",
        lambda: 1e6 * all_gather(2 * MB, 4, TORUS),
        expected=23.3 * 3 / 4,
        because=ONE_RING,
    ),
    Value(
        8,
        f"{SB}, sharding",
        "all-gather of 256 bytes, the same at 1 µs a hop",
        2,
        "µs",
        lambda: 1e6 * all_gather(256, 4, replace(TORUS, inside=Link(1e-6, 45e9))),
    ),
    Value(
        9,
        f"{SB}, sharding",
        "all-gather of 33.6 MB on a line of 4 TPUs",
        560,
        "µs",
        lambda: 1e6 * all_gather(32 * MB, 4, replace(TORUS, collectives="ring")),
    ),
    Value(
        9,
        f"{SB}, sharding",
        "all-gather of 131 kB, the same at 1 µs a hop",
        3,
        "µs",
        lambda: 1e6 * all_gather(2**17, 4, replace(TORUS, collectives="ring", inside=Link(1e-6, 45e9))),
        expected=3 + 2**17 * 3 / 4 / 45e3,
        because="α and β·bytes are added here; the book takes the larger",
    ),
    Value(
        10,
        f"{SB}, sharding",
        "all-reduce over Z of an array cut 16 ways",
        11.6,
        "µs",
        lambda: 1e6 * all_reduce(2 * 1024 * 4096 / 16, 4, TORUS),
        expected=11.65 * 3 / 4,
        because=f"{ONE_RING}; an early text forgot the cut: 190",
    ),
    Value(
        11,
        f"{SB}, roofline",
        "rows from which an H100's product is bound by work",
        298,
        "rows",
        lambda: FLOPS / LINE_RATE.memory_bytes_per_s,
        within=0.01,
    ),
    Value(
        12, f"{SB}, roofline", "a product of 298 rows, 8192 × 28672", 147, "µs", lambda: 1e6 * product(298, 8192, 28672)
    ),
    Value(
        13, f"{SB}, roofline", "a product cut along D on two chips is bound by work above D =", 8755, "", halved_product
    ),
    Value(
        14,
        f"{SB}, GPUs",
        "tokens a GPU that hide an all-reduce in a node",
        2200,
        "tokens",
        lambda: hiding_tokens(LINE_RATE, 8),
        expected=1925,
        because=ONE_RING,
    ),
    Value(
        15,
        f"{SB}, GPUs",
        "the same over 32 nodes",
        2475,
        "tokens",
        lambda: hiding_tokens(OVERLAPPED, 256),
        expected=2475 * 31 / 32,
        because=f"{ONE_RING}; {ADDED}",
    ),
    Value(
        15,
        f"{SB}, GPUs",
        "the same with levels added",
        2475,
        "tokens",
        lambda: hiding_tokens(LINE_RATE, 256),
        expected=4323,
        because="the book lets the levels overlap",
    ),
    Value(
        16,
        f"{SB}, GPUs",
        "the same for 4 of 128 experts",
        79_200,
        "tokens",
        lambda: 128 / 4 * costs.ring_all_reduce(2.0, 10**9, Link(0.0, 400e9)) / (4 / FLOPS),
    ),
    Value(
        17,
        f"{SB}, GPUs",
        "largest t in a node for F = 28,672",
        13.0,
        "",
        most_tensor_parallel,
        because="less the 1 of (t−1)/t; elsewhere the book prints 14.4, from 1995 where it means 2200",
    ),
    Value(
        18,
        f"{US}, A3",
        "ZeRO-3: communication over work",
        0.235,
        "",
        lambda: words_over_work(all_gather(2.0, 8, LINE_RATE), 2 * 4096),
        expected=0.470,
        because=TWICE,
    ),
    Value(
        18,
        f"{US}, A3",
        "tensor parallel: communication over work",
        0.940,
        "",
        lambda: words_over_work(all_gather(2.0, 8, LINE_RATE), 2 * 8192 / 8),
        expected=1.880,
        because=TWICE,
    ),
    Value(
        19,
        f"{SB}, training",
        "parameters of LLaMA-2 13B",
        13.1,
        "billion",
        lambda: LLAMA_13B.parameters / 1e9,
        within=0.01,
    ),
    Value(
        19, f"{SB}, applied training", "parameters of LLaMA-3 70B", 70.4, "billion", lambda: LLAMA_70B.parameters / 1e9
    ),
    Value(
        20,
        f"{SB}, inference",
        "parameters with heads of 256, tied",
        18.4,
        "billion",
        lambda: WIDE_HEADS.parameters / 1e9,
    ),
    Value(
        21,
        f"{SB}, applied training",
        "days for 6 · 70e9 · 15e12 FLOPs, 8,960 TPU v5p at 40%",
        44,
        "days",
        lambda: days(6 * 70e9 * 15e12, 8960, 4.59e14, 0.40),
        within=0.01,
    ),
    Value(
        21,
        f"{SB}, GPUs",
        "the same, 4,096 H100s at 45%",
        40,
        "days",
        lambda: days(6 * 70e9 * 15e12, 4096, FLOPS, 0.45),
        because="an early text prints 45, the days at 40%",
    ),
    *[
        Value(
            22,
            f"{US}, memory",
            f"bytes of states, {size} billion parameters",
            printed,
            "GB",
            lambda size=size: size * sum(recipe()),
        )
        for size, printed in ((1, 16), (7, 112), (70, 1120), (405, 6480))
    ],
    *[
        Value(
            22,
            f"{US}, memory",
            f"the same with gradients in 32 bits, {size} billion",
            printed,
            "GB",
            lambda size=size: size * sum(recipe(fp32_gradients=True)),
        )
        for size, printed in ((1, 20), (7, 140), (70, 1400), (405, 8100))
    ],
    Value(
        22,
        f"{SB}, GPUs",
        "H100s that hold 70B at least",
        9,
        "GPUs",
        lambda: math.ceil(70 * sum(Recipe(2, 0, 8)) / 80),
        because="no gradients and no copy in 32 bits are counted; with them 14",
    ),
    Value(
        23,
        f"{US}, recomputation",
        "saved by selective recomputation, GPT-3 175B",
        70,
        "%",
        lambda: 100 * (1 - gpt_3("selective") / gpt_3("none")),
    ),
    Value(
        23,
        f"{SB}, applied training",
        "checkpoints of 70B, 4M tokens, four of D numbers a layer",
        20.9,
        "TB",
        lambda: 4 * 80 * activation_bytes(4_000_000, 1, 8192, 64, "full") / 1e12,
        because="the text says three a layer",
    ),
    Value(
        23,
        f"{SB}, training",
        "checkpoints of 13B, 16M tokens, after the MLP's matrices",
        42,
        "TB",
        lambda: 40 * gated_activation_bytes(LLAMA_13B, 16_000_000, 1, "selective") / 1e12,
    ),
    Value(24, f"{US}, pipeline", "bubble over work, 4 stages, 8 micro-batches", 0.375, "", lambda: bubble(4, 8)),
    Value(24, f"{US}, pipeline", "bubble over work, 8 stages, 32 micro-batches", 0.219, "", lambda: bubble(8, 32)),
    *[
        Value(
            25,
            f"{SB}, inference",
            f"decoding step, LLaMA-2 13B on 8 TPU v5e, batch {rows}",
            printed,
            "ms",
            lambda rows=rows: decode_ms(13e9, 6.7e9, rows, 8, 2, 8.2e11),
            within=0.001,
        )
        for rows, printed in ((1, 4.98), (8, 12.13), (16, 20.30), (32, 36.65), (64, 69.33), (240, 249.09))
    ],
    Value(
        25,
        f"{SB}, inference",
        "the same, 30B in int8 on 16, batch 4",
        2.5,
        "ms",
        lambda: decode_ms(30e9, 819e6, 4, 16, 1),
        within=0.03,
    ),
    Value(25, f"{SB}, inference", "the same, batch 256", 21, "ms", lambda: decode_ms(30e9, 819e6, 256, 16, 1)),
    Value(
        25,
        f"{SB}, applied inference",
        "the same, LLaMA-3 70B in int8 on 8, batch 32",
        17,
        "ms",
        lambda: decode_ms(70e9, LLAMA_70B.kv_cache_bytes(8192, number=1), 32, 8, 1),
        within=0.03,
    ),
    Value(
        25,
        f"{SB}, inference",
        "KV cache of 13B at 8,192 places",
        6.71,
        "GB",
        lambda: LLAMA_13B.kv_cache_bytes(8192) / 1e9,
    ),
    Value(
        25,
        f"{SB}, applied inference",
        "prefill of 8,192, 70B, 16 TPU v5e at 40%",
        0.91,
        "s",
        lambda: 86400 * days(2 * 70e9 * 8192, 16, V5E_FLOPS, 0.40),
    ),
]


HEAD = """# What distlab's models give, beside two books

*How to Scale Your Model* (SB: Austin et al., Google DeepMind, 2025; github.com/jax-ml/scaling-book) and *The
Ultra-Scale Playbook* (US: Hugging Face, 2025) print the answers to many questions about large machines. Here the same
questions are asked of `distlab.machine`, and a test holds every value. Where the two differ, the last column says why.
As in the books, links have no latency and chips reach their peak, unless the question says otherwise.

| | source | question | printed | distlab | if they differ |
|--:|---|---|--:|--:|---|
"""


def page() -> str:
    """The text of docs/models.md."""
    return HEAD + "".join(f"{row(value)}\n" for value in VALUES)


def row(value: Value) -> str:
    printed, ours = (f"{digits(number)} {value.unit}".strip() for number in (value.printed, value.ours()))
    return f"| {value.row} | {value.source} | {value.question} | {printed} | {ours} | {value.because} |"


def digits(number: float) -> str:
    """Four significant digits, or all of a whole number."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


if __name__ == "__main__":
    PAGE.write_text(page())
