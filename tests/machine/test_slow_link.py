"""Modelled against measured on a real slow link: two hosts of two ranks each, joined at 100 Mbit/s.

The hosts are network namespaces, joined by a pair of virtual Ethernet interfaces that a token bucket (tbf) slows down
in both directions. torchrun runs this file on each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from distlab.machine.machines import Link
from distlab.machine.replay import replay
from tests.machine.recordings import built_in_all_reduce, with_links

ROOT = Path(__file__).parents[2]
HOSTS, RANKS_PER_HOST = 2, 2
MBIT_PER_S = 100
REPEATS = {1_000_000: 15, 4_000_000: 6, 16_000_000: 3}  # by bytes
LIMIT = 60  # seconds
# 50 µs: from memory, what TCP takes on loopback. Six such messages are 0.3% of the shortest time here.
ETHERNET = Link(50e-6, MBIT_PER_S * 1e6 / 8, "100 Mbit/s")
LOOPBACK = Link(50e-6, 1e9, "loopback")
INTERFACE = "veth"
MTU = "9000"  # so that headers are 1% of what travels, not 5%
# It holds 64 kB: one packet as Linux hands it over.
BUCKET = ["tbf", "rate", f"{MBIT_PER_S}mbit", "burst", "64kb", "latency", "400ms"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Seconds of an all-reduce over the slow link, by its bytes."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            names = stack.enter_context(joined_namespaces())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no slow link here: {' '.join(error.cmd)} said: {error.stderr.strip()}")
        return answer_of(names)


@pytest.mark.parametrize("size", REPEATS)
def test_an_all_reduce_takes_on_a_real_slow_link_what_the_model_says_within_10_percent(measured, size):
    machine = with_links(LOOPBACK, ETHERNET, ranks_per_node=RANKS_PER_HOST)
    modelled = replay(built_in_all_reduce(HOSTS * RANKS_PER_HOST, size), machine).wall
    assert measured[size] == pytest.approx(modelled, rel=0.1)


def why_not() -> str:
    """What a slow link cannot be made without, if it is missing."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid():
        return "only root may make network namespaces"
    missing = [program for program in ("ip", "tc") if not shutil.which(program)]
    return f"there is no {' and no '.join(missing)} (iproute2)" if missing else ""


def call(*command: str) -> str:
    """Runs a command and returns its output; raises CalledProcessError, with what it said, if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def inside(name: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", name, *command]


def address(host: int) -> str:
    return f"10.99.0.{host + 1}"


@contextmanager
def joined_namespaces():
    """Gives the names of two namespaces that are joined by a slow link, and leaves neither them nor what ran there."""
    remove_what_was_left()
    names = [f"distlab-{os.getpid()}-{host}" for host in range(HOSTS)]
    with ExitStack() as stack:
        for name in names:
            call("ip", "netns", "add", name)
            stack.callback(remove, name)
        ends = [("name", INTERFACE, "netns", name) for name in names]
        call("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host, name in enumerate(names):
            call("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", INTERFACE)
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", INTERFACE, "mtu", MTU, "up")
            call("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", *BUCKET)
        yield names


def remove(name: str) -> None:
    """Ends what runs in a namespace, and removes it; its end of the link goes with it."""
    for process in call("ip", "netns", "pids", name).split():
        try:
            os.kill(int(process), signal.SIGKILL)
        except ProcessLookupError:
            pass
    call("ip", "netns", "del", name)


def remove_what_was_left() -> None:
    """Removes the namespaces of a test that was killed."""
    for name, owner in re.findall(r"^(distlab-(\d+)-\d)\b", call("ip", "netns", "list"), re.M):
        if not os.path.exists(f"/proc/{owner}"):
            remove(name)


def answer_of(names: list[str]) -> dict[str, float]:
    """Runs torchrun on every host and returns what rank 0 printed."""
    hosts = [start_host(host, name) for host, name in enumerate(names)]
    said = [host.communicate(timeout=LIMIT) for host in hosts]
    assert [host.returncode for host in hosts] == [0] * HOSTS, "\n".join(errors for _, errors in said)
    seconds = json.loads(said[0][0])
    return {int(size): seconds[size] for size in seconds}


def start_host(host: int, name: str) -> subprocess.Popen:
    rendezvous = ["--nnodes", str(HOSTS), "--node-rank", str(host), "--nproc-per-node", str(RANKS_PER_HOST)]
    rendezvous += ["--master-addr", address(0), "--master-port", "29500"]
    command = inside(name, *TORCHRUN, *rendezvous, "--module", __name__)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def be_a_rank() -> None:
    """Measures an all-reduce of each size; rank 0 prints the seconds of the slowest rank."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT / 2))
    seconds = torch.tensor([seconds_of(size, repeats) for size, repeats in REPEATS.items()])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps(dict(zip(REPEATS, seconds.tolist(), strict=True))))
    dist.destroy_process_group()


def seconds_of(size: int, repeats: int) -> float:
    """The shortest of some all-reduces of ``size`` bytes: what else this computer does only adds to it."""
    x, times = torch.ones(size // 4), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    be_a_rank()
