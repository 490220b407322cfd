"""A rank that the system kills for want of memory, in a control group of its own so that it takes nobody along."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch.distributed as dist

from tests.faults.runner import Case

cloudpickle.register_pickle_by_value(sys.modules[__name__])
LIMIT = 64 << 20
LIMITS = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max")


def _where_groups_go() -> Path:
    """The folder in which to make a control group that can limit memory: of the first kind or the second."""
    root, unified = Path("/sys/fs/cgroup"), ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kind, path = line.split(":", 2)
        if "memory" in kind.split(","):
            return root / "memory" / path[1:]
        if not kind:
            unified = path[1:]
    return (root / unified).parent if unified else root  # the second kind: a group with processes has none inside it


@pytest.fixture
def small_group():
    """A control group for 64 MB."""
    try:
        group = _where_groups_go() / f"distlab-{os.getpid()}"
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs the right to make a control group: {error}")
    try:
        limits = [group / name for name in LIMITS if (group / name).exists()]
        if not limits:
            pytest.skip("needs a control group that can limit memory")
        for limit in limits:
            limit.write_text("0" if "swap" in limit.name else str(LIMIT))
        yield group
    finally:
        group.rmdir()


def test_a_rank_that_the_system_kills_for_want_of_memory_is_named(small_group):
    def fills_more_than_there_is():
        if dist.get_rank() == 1:
            (small_group / "cgroup.procs").write_text(str(os.getpid()))
            print(len(b"x" * (4 * LIMIT)))
        dist.barrier()

    says = r"^rank 1 died of SIGKILL \(killed from outside, likely out of memory\)$"
    Case(fills_more_than_there_is, says, rank=1, line="rank 0 lost its connection in barrier").try_it()
