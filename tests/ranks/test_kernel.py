"""Runs started from a real notebook kernel: cell names, interrupts, a kernel that dies, two kernels at once."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from jupyter_client.manager import KernelManager


class Kernel:
    """A notebook kernel to which a test sends cells."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=os.environ | {"PYTHONPATH": os.getcwd()})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)
        self.text = ""

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def start(self, cell: str) -> str:
        return self.client.execute(cell)

    def finish(self, request: str, seconds: float = 30) -> str:
        """Waits for a cell; returns what it printed or raised, as text."""
        text = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            text += content.get("text", "") + "\n".join(content.get("traceback", []))
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return text
        raise TimeoutError(f"the cell did not end within {seconds} s: {text}")

    def do(self, cell: str, seconds: float = 30) -> str:
        return self.finish(self.start(cell), seconds)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    kernel = Kernel()
    kernel.do("import time, torch, torch.distributed as dist\nfrom distlab import run")
    yield kernel
    kernel.close()


def _descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def _until(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _ended(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_tracebacks_show_the_cell_and_its_line(kernel):
    kernel.do("def half(x):\n    return x / 0")
    text = kernel.do("def job():\n    if dist.get_rank() == 1:\n        half(1)\n    dist.barrier()\nrun(job)")
    assert "rank 1 raised ZeroDivisionError: division by zero at cell In[2], line 2" in text
    assert "cell In[3], line 3, in job:  half(1)" in text
    assert "cell In[2], line 2, in half:  return x / 0" in text
    assert "launch.py" not in text


def test_an_edited_cell_that_was_not_run_again_shows_what_ran(kernel):
    kernel.do("def f():\n    raise ValueError('old')")
    assert "raise ValueError('old')" in kernel.do("run(f)")


def test_warnings_name_the_cell(kernel):
    text = kernel.do("import warnings\ndef f():\n    warnings.warn('careful')\nr = run(f, ranks=1)")
    assert "cell In[2]:3: UserWarning: careful" in text


def test_an_interrupt_brings_the_cell_back_and_says_where_every_rank_stood(kernel):
    kernel.do("run(dist.barrier)")
    cell = "def slow():\n    if dist.get_rank() == 0:\n        time.sleep(30)\n    dist.barrier()\nrun(slow, ranks=2)"
    request = kernel.start(cell)
    _until(lambda: len(_descendants(kernel.pid)) == 3)
    time.sleep(0.5)
    ranks = [p for p in _descendants(kernel.pid) if p.ppid() != kernel.pid]
    assert len(ranks) == 2
    started = time.monotonic()
    kernel.manager.interrupt_kernel()
    text = kernel.finish(request)
    assert time.monotonic() - started < 3
    assert "KeyboardInterrupt" in text
    assert "rank 0 is still busy at cell In[3], line 3:  time.sleep(30)" in text
    assert "rank 1 waits in barrier #1 at cell In[3], line 4:  dist.barrier()" in text
    assert _ended(ranks, 1)
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_a_killed_kernel_leaves_no_process(kernel):
    kernel.do("run(dist.barrier)")
    kernel.start("run(lambda: time.sleep(60), ranks=2)")
    _until(lambda: len(_descendants(kernel.pid)) == 3)
    left = _descendants(kernel.pid)
    assert len(left) == 3
    os.kill(kernel.pid, signal.SIGKILL)
    assert _ended(left, 2)


def test_two_kernels_run_at_once(kernel):
    other = Kernel()
    try:
        other.do("import time, torch, torch.distributed as dist\nfrom distlab import run")
        cell = "for _ in range(10):\n    values = run(lambda: dist.get_world_size(), ranks=4).values\nprint(values)"
        requests = [(k, k.start(cell)) for k in (kernel, other)]
        assert [k.finish(request) for k, request in requests] == ["[4, 4, 4, 4]\n"] * 2
    finally:
        other.close()


def test_output_never_shows_under_the_next_cell(kernel):
    kernel.do("run(lambda: [print(i) for i in range(100_000)], timeout=30)")
    assert kernel.do("print('next')").strip() == "next"


def test_two_interrupts_in_a_deadlock_that_nobody_watches(kernel):
    kernel.do("run(dist.barrier)")
    cell = "run(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()), record=False, timeout=60)"
    request = kernel.start(cell)
    _until(lambda: len(_descendants(kernel.pid)) == 3)
    time.sleep(0.5)
    started = time.monotonic()
    kernel.manager.interrupt_kernel()
    kernel.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in kernel.finish(request)
    assert time.monotonic() - started < 3
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_a_restarted_kernel_leaves_no_rank_and_runs_again(kernel):
    kernel.do("run(dist.barrier)")
    kernel.start("run(lambda: time.sleep(60), ranks=2)")
    _until(lambda: len(_descendants(kernel.pid)) == 3)
    left = _descendants(kernel.pid)
    kernel.manager.restart_kernel(now=True)
    assert _ended(left, 5)
    kernel.client.wait_for_ready(60)
    kernel.do("import time, torch, torch.distributed as dist\nfrom distlab import run")
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_a_cell_of_an_event_loop_runs_ranks(kernel):
    cell = "import asyncio\nawait asyncio.sleep(0)\nprint(run(lambda: dist.get_rank()).values)"
    assert kernel.do(cell) == "[0, 1]\n"


def test_a_flood_of_lines_is_few_messages(kernel):
    request = kernel.start("run(lambda: [print(i) for i in range(300_000)], timeout=60)")
    messages = 0
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            messages += message["msg_type"] == "stream"
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
    assert messages < 100
