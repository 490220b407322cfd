"""Ranks that are fresh Pythons: where fork is unsafe, or where each is to have addresses and a hash seed of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

from distlab.ranks.interrupts import put_off
from distlab.ranks.job import Job
from distlab.ranks.processes.environment import native_environment

_END_PATIENCE = 5.0


class SpawnedRanks:
    """The ranks of one run, each a fresh Python."""

    def __init__(self):
        self._processes: dict[int, subprocess.Popen] = {}

    def start(self, job: Job) -> list[tuple[Connection, int]]:
        """Starts the ranks; returns for each the connection it reports to and the descriptor of what it prints."""
        digest = job.write()
        started: list[tuple[Connection, int]] = []
        try:
            for rank in range(job.num_ranks):
                with put_off():
                    started.append(self._start(job, digest, rank))
        except BaseException:  # an interrupt too
            for _, output in started:
                os.close(output)
            raise
        return started

    def _start(self, job: Job, digest: str, rank: int) -> tuple[Connection, int]:
        ours, theirs = multiprocessing.Pipe()
        handle = theirs.fileno()
        if os.name == "nt":
            os.set_handle_inheritable(handle, True)
            options = {"close_fds": False}
        else:
            options = {"pass_fds": [handle], "start_new_session": True}
        self._processes[rank] = subprocess.Popen(
            [sys.executable, "-P", "-m", "distlab.ranks.processes.spawned", job.folder, digest, str(rank), str(handle)],
            env=native_environment() | {"PYTHONHASHSEED": job.hash_seed(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )
        theirs.close()
        return ours, os.dup(self._processes[rank].stdout.fileno())

    def exit_statuses(self) -> dict[int, int]:
        """The exit codes of the ranks that have ended, negative for a signal."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def pids(self) -> list[int]:
        """The process ids of the ranks."""
        return [process.pid for process in self._processes.values()]

    def ask_for_stack(self, rank: int) -> None:
        """Has a rank write where it stands to its stack file, where the system has such a signal."""
        if hasattr(signal, "SIGUSR1"):
            self._processes[rank].send_signal(signal.SIGUSR1)

    def end(self, wait: bool) -> None:
        """Ends the ranks and what runs in their sessions."""
        for process in self._processes.values():
            if os.name == "posix":
                _kill_session(process.pid)
            process.kill()
            process.wait(_END_PATIENCE)
            process.stdout.close()


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing of it is left
