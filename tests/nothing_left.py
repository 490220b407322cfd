"""Looks after every test of the runner: no process, port or file may be left."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from distlab.ranks.processes.starting import kept_server


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and _status(p) != psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def ranks_alive() -> list[psutil.Process]:
    """Every process that came from this process's fork server, or was spawned as a rank."""
    server = kept_server.get().pid
    return _living([p for p in psutil.Process().children(recursive=True) if p.pid != server])


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"distlab-{os.getpid()}-*"))


def _ports() -> set[int]:
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found


def _besides(others: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in ranks_alive() if process not in others]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Fails a test that leaves a rank, a listening port or a temporary folder."""
    kept_server.get()
    ports, others = _ports(), ranks_alive()  # what another test has started for all, a browser for instance
    yield
    deadline = time.monotonic() + 2
    while _besides(others) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _besides(others) == []
    assert _ports() <= ports
    assert _folders() == []
