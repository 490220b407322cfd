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

_SPAWNED = "distlab.ranks.processes.spawned"
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
        output, printed = os.pipe()
        handle, is_posix = theirs.fileno(), os.name == "posix"
        if sys.platform == "win32":
            os.set_handle_inheritable(handle, True)
        try:
            self._processes[rank] = subprocess.Popen(
                [sys.executable, "-P", "-m", _SPAWNED, job.folder, digest, str(rank), str(handle)],
                env=native_environment() | {"PYTHONHASHSEED": job.hash_seed(rank)},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                close_fds=is_posix,
                pass_fds=[handle] if is_posix else [],
                start_new_session=is_posix,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(printed)
        return ours, output

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


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing of it is left
