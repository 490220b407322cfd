"""Runs started from real notebook kernels: cell names, interrupts, a kernel that dies, two kernels at once.

A kernel takes seconds to start, so two serve all tests; the one that is restarted and killed comes last.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.said import said

IMPORTS = """
import os, pathlib, signal, subprocess, time, warnings
import torch, torch.distributed as dist
from distlab import check, run
from distlab.ranks.processes.starting import kept_server
"""
SLOW = 300  # seconds that a machine which is busy with other things may take for what takes two


class Kernel:
    """A notebook kernel to which a test sends cells; ``cells`` counts them, as the names of cells do."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=os.environ | {"PYTHONPATH": os.getcwd()})
        self.client = self.manager.client()
        self.client.start_channels()
        self.begin()

    def begin(self) -> None:
        """Waits for a kernel that has just been started, and imports what cells use."""
        self.client.wait_for_ready(SLOW)
        self.cells = 0
        self.do(IMPORTS, SLOW)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def start(self, cell: str) -> str:
        self.cells += 1
        return self.client.execute(cell)

    def finish(self, request: str, seconds: float = 60) -> str:
        """Waits for a cell; returns what it printed or raised, as text."""
        text = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            text += said(content) + "\n".join(content.get("traceback", []))
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return text
        raise TimeoutError(f"the cell did not end within {seconds} s: {text}")

    def do(self, cell: str, seconds: float = 60) -> str:
        return self.finish(self.start(cell), seconds)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def folders(self) -> list[Path]:
        """The temporary folders of its runs."""
        return list(Path(tempfile.gettempdir()).glob(f"distlab-{self.pid}-*"))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def other_kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture(autouse=True)
def nothing_is_left(kernel):
    """Fails a test after which the kernel has more than its fork server, or a temporary folder."""
    yield
    assert _until(lambda: len(kernel.descendants()) <= 1), kernel.descendants()
    assert _until(lambda: kernel.folders() == []), kernel.folders()


def _until(condition, seconds: float = 60) -> bool:
    """Waits for a condition; returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _ended(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def sleeping(folder: Path, ranks: int = 2) -> str:
    """A cell with ranks that start a process each, say in ``folder`` that they are there, and sleep."""
    return (
        "def sleep_beside_a_process():\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"    pathlib.Path({str(folder)!r}, str(dist.get_rank())).touch()\n"
        "    time.sleep(60)\n"
        f"run(sleep_beside_a_process, ranks={ranks})"
    )


def _started(kernel: Kernel, folder: Path, cell: str, ranks: int = 2) -> str:
    """Starts a cell and waits until every rank has left its file in ``folder``."""
    request = kernel.start(cell)
    assert _until(lambda: len(list(folder.iterdir())) == ranks)
    return request


def test_tracebacks_show_the_cell_and_its_line(kernel):
    kernel.do("def half(x):\n    return x / 0")
    n = kernel.cells
    text = kernel.do("def job():\n    if dist.get_rank() == 1:\n        half(1)\n    dist.barrier()\nrun(job)")
    assert f"rank 1 raised ZeroDivisionError: division by zero at cell In[{n}], line 2" in text
    assert f"cell In[{n + 1}], line 3, in job:  half(1)" in text
    assert f"cell In[{n}], line 2, in half:  return x / 0" in text
    assert "launch.py" not in text


def test_an_edited_cell_that_was_not_run_again_shows_what_ran(kernel):
    kernel.do("def f():\n    raise ValueError('old')")
    assert "raise ValueError('old')" in kernel.do("run(f)")


def test_warnings_name_the_cell(kernel):
    text = kernel.do("def f():\n    warnings.warn('careful')\nr = run(f, ranks=1)")
    assert f"cell In[{kernel.cells}]:2: UserWarning: careful" in text


def test_an_interrupt_brings_the_cell_back_and_says_where_every_rank_stood(kernel, tmp_path):
    state = "(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), dict(os.environ), os.getcwd())"
    kernel.do(f"before = {state}")
    cell = (
        "def slow():\n"
        f"    pathlib.Path({str(tmp_path)!r}, str(dist.get_rank())).touch()\n"
        "    if dist.get_rank() == 0:\n"
        "        time.sleep(30)\n"
        "    dist.barrier()\n"
        "run(slow, ranks=2)"
    )
    request = _started(kernel, tmp_path, cell)
    ranks = [p for p in kernel.descendants() if p.ppid() != kernel.pid]
    assert len(ranks) == 2
    time.sleep(0.3)  # from the file to the next line
    started = time.monotonic()
    kernel.manager.interrupt_kernel()
    text = kernel.finish(request)
    assert time.monotonic() - started < 3
    assert text.splitlines() == [
        "Interrupted. When you stopped it:",
        f"rank 0 is still busy at cell In[{kernel.cells}], line 4:  time.sleep(30)",
        f"rank 1 waits in barrier #1 at cell In[{kernel.cells}], line 5:  dist.barrier()",
    ]
    assert _ended(ranks, 1)
    assert kernel.do(f"print(before == {state})") == "True\n"
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_two_interrupts_in_a_deadlock_that_nobody_watches(kernel, tmp_path):
    cell = (
        "def deadlock():\n"
        f"    pathlib.Path({str(tmp_path)!r}, str(dist.get_rank())).touch()\n"
        "    dist.recv(torch.ones(1), 1 - dist.get_rank())\n"
        "run(deadlock, record=False, timeout=60)"
    )
    request = _started(kernel, tmp_path, cell)
    started = time.monotonic()
    kernel.manager.interrupt_kernel()
    kernel.manager.interrupt_kernel()
    text = kernel.finish(request)
    assert time.monotonic() - started < 3
    assert text.startswith("Interrupted. When you stopped it:\nrank") and "launch.py" not in text
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_many_interrupts_one_after_another(kernel, tmp_path):
    request = _started(kernel, tmp_path, sleeping(tmp_path))
    for _ in range(20):
        kernel.manager.interrupt_kernel()
        time.sleep(0.01)
    text = kernel.finish(request)
    # What comes after the clean-up meets the notebook instead of the run, and the notebook says so in its own words.
    assert ("Interrupted. When you stopped it:\n" in text or "KeyboardInterrupt" in text) and "launch.py" not in text
    assert "[0, 1]" in kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_an_interrupt_that_the_cell_handles_holds_the_text(kernel, tmp_path):
    cell = sleeping(tmp_path).rpartition("\n")
    handled = f"try:\n    {cell[2]}\nexcept KeyboardInterrupt as stopped:\n    print('handled:', stopped)"
    request = _started(kernel, tmp_path, cell[0] + "\n" + handled)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request).startswith("handled: Interrupted. When you stopped it:\nrank 0")


def test_an_interrupt_while_the_first_run_still_starts(kernel):
    request = kernel.start(
        "kept_server.discard()\nserver = kept_server.get()\nos.kill(server.pid, signal.SIGSTOP)  # imports for ever\n"
        "run(lambda: dist.get_rank())"
    )
    assert _until(kernel.folders)
    started = time.monotonic()
    for _ in range(3):
        kernel.manager.interrupt_kernel()
    text = kernel.finish(request)
    assert time.monotonic() - started < 3
    assert text.startswith("Interrupted before the function began on any rank") and len(text.splitlines()) == 1
    assert len(kernel.descendants()) == 1 and kernel.folders() == []
    assert kernel.do("os.kill(server.pid, signal.SIGCONT)\nprint(run(dist.get_rank).values)") == "[0, 1]\n"


def test_an_interrupt_while_fresh_pythons_start(kernel):
    request = kernel.start("run(lambda: dist.get_rank(), start='spawn', ranks=4)")
    assert _until(lambda: len(kernel.descendants()) > 1)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request).startswith("Interrupted before the function began on any rank")
    assert kernel.do("print(run(dist.get_rank).values)") == "[0, 1]\n"


def test_an_interrupt_while_things_are_copied_to_the_ranks(kernel, tmp_path):
    request = kernel.start(
        "class Slow:\n"
        "    def __reduce__(self):\n"
        f"        pathlib.Path({str(tmp_path)!r}, 'here').touch()\n"
        "        time.sleep(60)\n"
        "run(lambda slow: None, Slow())"
    )
    assert _until(lambda: list(tmp_path.iterdir()))
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request).startswith("Interrupted before the function began on any rank")


@pytest.mark.parametrize("times", [1, 5])
def test_an_interrupted_check_shows_one_line_and_notes_nothing(kernel, tmp_path, times):
    home = tmp_path / "home"
    home.mkdir()
    (home / "progress.json").write_text('{"send_and_receive": ["abc"]}')
    request = kernel.start(
        f"os.environ['DISTLAB_HOME'] = {str(home)!r}\n"
        "def my_rows(n, rank, world):\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'here').touch()\n"
        "    time.sleep(60)\n"
        "check(my_rows)"
    )
    assert _until((tmp_path / "here").exists)
    for _ in range(times):
        kernel.manager.interrupt_kernel()
    assert kernel.finish(request) == "Interrupted before check(my_rows) had found anything."
    assert [file.name for file in home.iterdir()] == ["progress.json"]
    assert (home / "progress.json").read_text() == '{"send_and_receive": ["abc"]}'


def test_output_never_shows_under_the_next_cell(kernel):
    kernel.do("run(lambda: [print(i) for i in range(100_000)], timeout=30)")
    assert kernel.do("print('next')").strip() == "next"


def test_a_cell_of_an_event_loop_runs_ranks(kernel):
    cell = "import asyncio\nawait asyncio.sleep(0)\nprint(run(lambda: dist.get_rank()).values)"
    assert kernel.do(cell) == "[0, 1]\n"


def test_a_flood_of_lines_is_few_messages(kernel):
    cell = (
        "is_ci = os.environ.pop('CI')  # there nothing streams\n"
        "def flood():\n"
        "    until = time.monotonic() + 2.6\n"
        "    while time.monotonic() < until:\n"
        "        print(time.monotonic())\n"
        "run(flood)\n"
        "os.environ['CI'] = is_ci"
    )
    request = kernel.start(cell)
    messages = 0
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            messages += message["msg_type"] == "stream"
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
    assert 0 < messages < 30


def test_what_a_rank_displays_is_text_under_its_cell(kernel):
    text = kernel.do("from IPython.display import display, HTML\nr = run(lambda: display(HTML('<b>x</b>')), ranks=1)")
    assert "IPython.core.display.HTML object" in text


def test_the_same_cell_shows_the_same_text_every_time(kernel):
    kernel.do("def talk():\n    print('from', dist.get_rank())\n    dist.recv(torch.ones(1), 1 - dist.get_rank())")
    first, second = kernel.do("run(talk)"), kernel.do("run(talk)")
    assert first == second and "each wait to receive from the other" in first


def test_two_kernels_run_at_once(kernel, other_kernel):
    cell = "for _ in range(10):\n    values = run(lambda: dist.get_world_size(), ranks=4).values\nprint(values)"
    requests = [(k, k.start(cell)) for k in (kernel, other_kernel)]
    assert [k.finish(request) for k, request in requests] == ["[4, 4, 4, 4]\n"] * 2


def test_a_restarted_kernel_leaves_no_rank_and_runs_again(other_kernel, tmp_path):
    _started(other_kernel, tmp_path, sleeping(tmp_path))
    left, folders = other_kernel.descendants(), other_kernel.folders()
    other_kernel.manager.restart_kernel(now=True)
    assert _ended(left, 60)
    assert len(left) == 5 and len(folders) == 1
    assert _until(lambda: not folders[0].exists())  # by the fork server's last act, which nobody waits for
    other_kernel.begin()
    assert "[0, 1]" in other_kernel.do("print(run(lambda: dist.get_rank()).values)")


def test_a_killed_kernel_leaves_no_process_and_no_file(other_kernel, tmp_path):
    _started(other_kernel, tmp_path, sleeping(tmp_path))
    left, folders = other_kernel.descendants(), other_kernel.folders()
    assert len(left) == 5 and len(folders) == 1  # the fork server, two ranks, a process of each
    os.kill(other_kernel.pid, signal.SIGKILL)
    assert _ended(left, 60)
    assert not folders[0].exists()  # its last process has removed it
