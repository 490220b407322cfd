"""How fast this computer is: what each of two ranks measures while the other does the same."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

_REPEATS = 20
_WIDTH = 512
_SMALL, _LARGE = 8, 4 << 20


def one_of_two() -> dict[str, float]:
    """Returns the rates of this rank, one of two, by the names of Machine's fields (link and latency apart)."""
    products = [2 * _WIDTH**3 / seconds for seconds in _products()]
    latency, large = min(_one_way(_SMALL)), min(_one_way(_LARGE))  # of a message on a busy computer, the quickest
    return {
        "peak_flops": max(products),
        "achieved_flops": median(products),
        "memory_bytes_per_s": _memory(),
        "operator_overhead_s": _overhead(),
        "latency_s": latency,
        "link_bytes_per_s": _LARGE / max(large - latency, large / 2),
    }


def _products() -> list[float]:
    a, b, out = (torch.rand(_WIDTH, _WIDTH) for _ in range(3))
    return _times(lambda: torch.mm(a, b, out=out))


def _memory() -> float:
    source, target = torch.rand(4 << 20), torch.empty(4 << 20)
    return 2 * source.nbytes / median(_times(lambda: target.copy_(source)))


def _overhead() -> float:
    tiny = torch.ones(1)
    return median(_times(lambda: [tiny.add_(1) for _ in range(100)])) / 100


def _one_way(bytes: int) -> list[float]:
    """Seconds of half a round trip between ranks 0 and 1."""
    x = torch.zeros(bytes, dtype=torch.uint8)
    turn = [dist.send, dist.recv] if dist.get_rank() == 0 else [dist.recv, dist.send]
    return [seconds / 2 for seconds in _times(lambda: [step(x, 1 - dist.get_rank()) for step in turn])]


def _times(call: Callable) -> list[float]:
    """Seconds of each of some calls, after one that does not count, begun on both ranks together."""
    call()
    dist.barrier()
    times = []
    for _ in range(_REPEATS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return times
