"""Machines that are not as they should be: one core, a home that can't be written, little shared memory, odd paths.

A fresh Python takes seconds, so two stand for all: one whose surroundings any user may choose, one that needs the right
to mount. Each says what it met, and each test looks whether that was as odd as it should be.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, socket, sys, tempfile, traceback

def writable(folder):
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

def resolves():
    try:
        return bool(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return False

try:
    streams = [sys.stdin is None, sys.stderr is None]
    import torch, torch.distributed as dist
    from distlab import run

    def add():
        x = torch.ones(100_000) * dist.get_rank()
        dist.all_reduce(x)
        return x[0].item()

    values = run(add, ranks=4, device="cpu").values
    shared = os.statvfs("/dev/shm")
    print(json.dumps(dict(
        values=values, streams=streams, cores=len(os.sched_getaffinity(0)), folder=os.fsencode(os.getcwd()).decode(),
        shared=shared.f_blocks * shared.f_frsize, encoding=sys.getfilesystemencoding(), resolves=resolves(),
        home=writable(os.environ["HOME"]), TMPDIR=writable(os.environ["TMPDIR"]), rank=os.environ.get("RANK"),
    )))
except Exception:
    traceback.print_exc(file=sys.stdout)  # standard error may be closed
"""
ODD = "mein Kurs für Ünïcode 文件"
LEFT = {
    "RANK": "3",
    "WORLD_SIZE": "7",
    "MASTER_ADDR": "10.1.1.1",
    "MASTER_PORT": "1",
    "LOCAL_RANK": "3",
    "GLOO_SOCKET_IFNAME": "nosuch0",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "OMP_NUM_THREADS": "64",
}


def met(before: list[str], cwd: str | None = None, **environment: str) -> dict:
    """What the program met in a fresh Python, started through the words ``before`` and with other variables."""
    command = [*before, sys.executable, "-c", PROGRAM]
    env = os.environ | {"PYTHONPATH": os.getcwd()} | environment
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs the right to mount something of its own (root)")
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["values"] == [6.0] * 4
    return found


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """One core, an odd folder, a plain locale, another launcher's settings, closed streams."""
    folder = tmp_path_factory.mktemp("chosen") / ODD
    folder.mkdir()
    closed = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh"]
    one_core = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}
    return met([*closed, *one_core], str(folder), TMPDIR=str(folder), **plain, **LEFT)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """A host name that nothing resolves, a home and a temporary folder to read only, 64 MB of shared memory."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (Linux) to mount something of its own")
    home, temporary = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("temporary")
    steps = ["hostname nosuch.invalid", "mount -t tmpfs -o size=64m none /dev/shm"]
    steps += [f"mount -t tmpfs -o ro none {folder}" for folder in (home, temporary)]
    before = ["unshare", "--mount", "--uts", "sh", "-c", f'{" && ".join(steps)} && exec "$@"', "sh"]
    return met(before, HOME=str(home), DISTLAB_HOME=str(home), TMPDIR=str(temporary))


@pytest.mark.skipif(not shutil.which("taskset"), reason="needs taskset (Linux)")
def test_one_core(chosen):
    assert chosen["cores"] == 1


def test_a_path_with_spaces_and_letters_of_other_alphabets(chosen):
    assert os.path.basename(chosen["folder"]) == ODD


def test_a_plain_locale(chosen):
    assert chosen["encoding"] == "ascii"


def test_settings_left_over_from_another_launcher_do_no_harm(chosen):
    assert chosen["rank"] == "3"


def test_standard_streams_that_are_closed(chosen):
    assert chosen["streams"] == [True, True]


def test_a_host_name_that_does_not_resolve(mounted):
    assert not mounted["resolves"]


def test_a_home_that_cannot_be_written(mounted):
    assert not mounted["home"]


def test_a_temporary_folder_that_cannot_be_written_is_passed_over(mounted):
    assert not mounted["TMPDIR"]


def test_64_megabytes_of_shared_memory(mounted):
    assert mounted["shared"] == 64 << 20
