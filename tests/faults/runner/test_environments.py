"""Machines that are not as they should be: one core, a home that can't be written, little shared memory, odd paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import torch, torch.distributed as dist
from distlab import run

def add():
    x = torch.ones(100_000) * dist.get_rank()
    dist.all_reduce(x)
    return x[0].item()

print(run(add, ranks=4, device="cpu").values)
"""
RIGHT = "[6.0, 6.0, 6.0, 6.0]\n"


def ran(before: list[str] = (), cwd: str | None = None, **environment: str) -> subprocess.CompletedProcess:
    """The program in a fresh Python, with words before the command and other variables."""
    command = [*before, sys.executable, "-c", PROGRAM]
    env = os.environ | {"PYTHONPATH": os.getcwd()} | environment
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def in_namespace(setting: str) -> subprocess.CompletedProcess:
    """The program where a shell command has changed what is mounted; skips where that needs more rights."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (Linux) to mount something of its own")
    done = ran(["unshare", "--mount", "sh", "-c", f'{setting} && exec "$@"', "sh"])
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs the right to mount something of its own (root)")
    return done


def test_one_core():
    if not shutil.which("taskset"):
        pytest.skip("needs taskset (Linux)")
    assert ran(["taskset", "-c", "0"]).stdout == RIGHT


def test_a_home_that_cannot_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    done = in_namespace(f"mount -t tmpfs -o ro none {home} && export HOME={home} DISTLAB_HOME={home}")
    assert done.stdout == RIGHT, done.stderr


def test_64_megabytes_of_shared_memory():
    done = in_namespace("mount -t tmpfs -o size=64m none /dev/shm")
    assert done.stdout == RIGHT, done.stderr


def test_a_temporary_folder_that_cannot_be_written_is_passed_over(tmp_path):
    done = in_namespace(f"mount -t tmpfs -o ro none {tmp_path} && export TMPDIR={tmp_path}")
    assert done.stdout == RIGHT, done.stderr


def test_a_path_with_spaces_and_letters_of_other_alphabets(tmp_path):
    folder = tmp_path / "mein Kurs für Ünïcode 文件"
    folder.mkdir()
    assert ran(cwd=str(folder), TMPDIR=str(folder)).stdout == RIGHT


def test_a_plain_locale():
    assert ran(LC_ALL="C", LANG="C", PYTHONUTF8="0").stdout == RIGHT


def test_settings_left_over_from_another_launcher_do_no_harm():
    left = dict(RANK="3", WORLD_SIZE="7", MASTER_ADDR="10.1.1.1", MASTER_PORT="1", LOCAL_RANK="3")
    left |= dict(GLOO_SOCKET_IFNAME="nosuch0", TORCH_DISTRIBUTED_DEBUG="DETAIL", OMP_NUM_THREADS="64")
    assert ran(**left).stdout == RIGHT


def test_standard_streams_that_are_closed():
    done = ran(["sh", "-c", '"$@" <&- 2>&-', "sh"])
    assert done.stdout == RIGHT
