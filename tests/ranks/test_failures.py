"""A run that fails comes back in bounded time and says why, on which rank and at which line."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run
from distlab.ranks.processes.starting import StartError, kept_server
from distlab.ranks.verdicts.failures import Failure

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = "tests/ranks/test_failures.py"


def lost(fn, *args, ranks=4, timeout=30, within=10.0, record=True) -> RankError:
    """The error of a run that must fail ``within`` seconds."""
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(fn, *args, ranks=ranks, timeout=timeout, record=record)
    assert time.monotonic() - started < within
    return caught.value


def on_rank_2(act):
    """Every other rank waits in an all_reduce for rank 2, which acts instead."""
    if dist.get_rank() == 2:
        return act()
    dist.all_reduce(torch.ones(1))


def raise_value_error():
    raise ValueError("bad batch")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (raise_value_error, "rank 2 raised ValueError: bad batch at"),
        (lambda: sys.exit(0), "rank 2 called sys.exit(0) and so left without finishing at"),
        (lambda: os._exit(3), "rank 2 called os._exit(3) and so left without finishing at"),
        (lambda: os._exit(0), "rank 2 called os._exit(0) and so left without finishing at"),
        (os.abort, "rank 2 died of SIGABRT (native code gave up) at"),
        (lambda: ctypes.string_at(0), "rank 2 died of SIGSEGV (a crash in native code) at"),
        (lambda: exec("raise KeyboardInterrupt"), "rank 2 raised KeyboardInterrupt at"),
        (
            lambda: None,
            "rank 2 returned and never joined all_reduce #1, in which ranks 0, 1 and 3 wait",
        ),
    ],
)
def test_the_cause_and_its_line_come_first(act, words):
    error = lost(on_rank_2, act)
    assert error.verdict.startswith(words)
    assert f"{HERE}, line " in str(error)


def test_a_rank_killed_from_outside_is_named_with_its_signal():
    error = lost(on_rank_2, lambda: os.kill(os.getpid(), 9))
    assert error.verdict.startswith("rank 2 died of SIGKILL") and error.failures[2].kind == "died"


def test_victims_are_one_line_each_and_the_cause_has_its_source():
    error = lost(on_rank_2, raise_value_error)
    assert (error.rank, error.original_type) == (2, "ValueError")
    assert sorted(error.failures) == [0, 1, 2, 3]
    assert all(error.failures[rank].is_victim for rank in (0, 1, 3))
    lines = str(error).splitlines()
    assert '    raise ValueError("bad batch")' not in lines[0]
    assert any(line.endswith('in raise_value_error:  raise ValueError("bad batch")') for line in lines)
    assert sum(line.startswith("rank 0 lost its connection in all_reduce") for line in lines) == 1


def test_a_loop_without_end_is_stopped_at_the_limit_with_every_ranks_line():
    def spin():
        while True:
            pass

    error = lost(on_rank_2, spin, timeout=1)
    assert error.verdict.startswith("not finished after 1 s (timeout=1): ranks 0, 1 and 3 wait in all_reduce #1")
    assert error.failures[2].frames[-1].code in ("pass", "while True:")


def test_native_code_that_never_lets_python_run_is_stopped_and_located():
    error = lost(on_rank_2, lambda: sum(range(10**13)), timeout=1)
    assert "sum(range(10**13))" in error.failures[2].frames[-1].code


def test_a_hang_is_stopped_at_the_limit_and_shows_who_waits_where():
    def both_receive_first():
        other = 1 - dist.get_rank()
        dist.recv(torch.zeros(1), src=other)
        dist.send(torch.ones(1), dst=other)

    error = lost(both_receive_first, ranks=2, record=False, timeout=1)
    assert "ranks 0 and 1 wait in recv at" in error.verdict
    assert error.failures[0].frames[-1].code == "dist.recv(torch.zeros(1), src=other)"


def test_without_a_recording_a_rank_that_returned_early_is_still_named():
    error = lost(on_rank_2, lambda: None, record=False)
    assert error.verdict.startswith("rank 2 returned while others still needed it: ranks 0, 1 and 3 lost")


def test_ranks_that_returned_are_told_when_the_time_is_up():
    def one_waits():
        if dist.get_rank() == 0:
            time.sleep(30)

    assert "rank 1 returned" in lost(one_waits, ranks=2, timeout=1).verdict


def test_slow_is_not_stuck():
    assert run(time.sleep, 1.2, timeout=10).values == [None, None]


def test_a_rank_that_computes_while_another_fails_is_stopped():
    def fail_or_sleep():
        if dist.get_rank() == 1:
            raise_value_error()
        time.sleep(30)

    error = lost(fail_or_sleep, ranks=2)
    assert error.rank == 1 and error.failures[0].kind == "stopped"


def test_processes_that_a_rank_started_end_with_it(tmp_path):
    def leave_a_child():
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (tmp_path / str(dist.get_rank())).write_text(str(child.pid))
        dist.barrier()
        raise_value_error()

    lost(leave_a_child, ranks=2)
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_the_original_message_stays_beside_the_hint():
    error = lost(lambda: dist.init_process_group("gloo"), ranks=2)
    assert "twice" in error.verdict and "leave out init_process_group" in str(error)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("ProcessGroupGloo does not support allreduce_coalesced", "gloo serves CPU tensors"),
        ("SyncBatchNorm layers only work with GPU modules", "on CPU average the statistics yourself"),
        ("code: -98, name: EADDRINUSE, message: address already in use", "it needs no port"),
        ("No module named 'helpers'", "a file beside the notebook"),
        ("Invalid scalar type", "convert first"),
        ("something else", ""),
    ],
)
def test_what_a_puzzling_message_means_is_said(message, words):
    assert words in Failure("raised", "RuntimeError", message).hint
    assert bool(words) == bool(Failure("raised", "RuntimeError", message).hint)


def waits_for_its_work():
    dist.all_reduce(torch.ones(1), async_op=True).wait()


def sends_to_rank_2():
    dist.send(torch.ones(1), 2)


def waits_for_its_request():
    dist.irecv(torch.ones(1), 2).wait()


def averages_with_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()


def meets():
    dist.monitored_barrier()


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("wait", [waits_for_its_work, sends_to_rank_2, waits_for_its_request, averages_with_ddp, meets])
def test_where_a_victim_stood_is_never_a_function_of_distlabs(wait, record):
    def fail_or_wait():
        if dist.get_rank() == 2:
            raise_value_error()
        wait()

    own = {
        name for path in Path("distlab/ranks").rglob("*.py") for name in re.findall(r"def (\w+)\(", path.read_text())
    }
    error = lost(fail_or_wait, record=record)
    assert error.rank == 2
    named = {error.failures[rank].function for rank in error.failures}
    assert named & own <= {"wait", *dir(dist)}, named


def test_an_error_whose_text_cannot_be_made_is_still_reported():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def fail():
        raise Mute

    assert "raised Mute: (its text can't be read: __str__ raised RuntimeError)" in lost(fail, ranks=1).verdict


def test_a_run_after_a_failure_is_as_good_as_new():
    lost(on_rank_2, os.abort)
    assert run(lambda: dist.get_rank(), ranks=3).values == [0, 1, 2]


def test_a_server_that_is_lost_during_a_run_or_after_it_is_replaced():
    def end_the_server():
        if dist.get_rank() == 0:
            os.kill(os.getppid(), 9)
        time.sleep(30)

    with pytest.raises(StartError, match="the process that starts the ranks has ended: exit code -9"):
        run(end_the_server)
    os.kill(kept_server.get().pid, 9)
    time.sleep(0.1)
    assert run(lambda: dist.get_rank()).values == [0, 1]
