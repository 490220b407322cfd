"""What this machine can do, and whether two ranks work here: text to read, and to paste into a question."""

from __future__ import annotations

import os
import platform
import sys
import time

import torch
import torch.distributed as dist

import distlab
from distlab.ranks.launch import run
from distlab.ranks.outcome import RankError
from distlab.ranks.processes.starting import StartError, start_method


def this_machine() -> None:
    """Prints how ranks will run here: cores, GPUs, backend, and that times are this computer's own."""
    gpus = torch.cuda.device_count()
    print(f"{_cores()} CPU cores, {_gpus()}. Each rank is a process of its own.")
    if gpus > 1:
        print(f"Up to {gpus} ranks run on the GPUs with NCCL; more run on the CPU with gloo.")
    else:
        print("Ranks run on the CPU and talk with gloo, each on one thread.")
    print(f"{_cores()} of them can compute at once. Wall-clock times in this lab are measured on this computer.")


def doctor() -> bool:
    """Prints versions, devices, the start method and a self-test of two ranks; returns whether the test passed."""
    print(f"distlab  {distlab.__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"system   {platform.system()} {platform.release()} {platform.machine()}, {_cores()} cores, {_gpus()}")
    print(f"python   {sys.executable}")
    backends = f"gloo {_yes(dist.is_gloo_available())}, NCCL {_yes(dist.is_nccl_available())}"
    print(f"ranks    start method {start_method()}; {backends}")
    passed, words = _self_test()
    print(f"test     {words}")
    return passed


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> str:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(names)} GPU{'s' if len(names) > 1 else ''} ({', '.join(sorted(set(names)))})" if names else "no GPU"


def _yes(available: bool) -> str:
    return "yes" if available else "no"


def _add_ranks() -> float:
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    return x.item()


def _self_test() -> tuple[bool, str]:
    started = time.perf_counter()
    try:
        values = run(_add_ranks, ranks=2, device="cpu").values
    except (RankError, StartError) as error:
        return False, f"two ranks could not add two numbers: {error}"
    took = time.perf_counter() - started
    return values == [
        3.0,
        3.0,
    ], f"two ranks added 1 and 2 and got {values[0]:g}, in {took:.2f} s with the start of the first run"
