"""The fork server: a clean process that has imported torch and done nothing else, from which ranks are forked.

The notebook's own process is never forked: forking after a ``backward()`` deadlocks, and CUDA forbids it.
``multiprocessing``'s own forkserver would not do: there is one for the whole notebook, shared with whatever else uses
it there, with the environment that the notebook had when it was first used; and a process that a rank has started
outlives it. Requests and answers are small JSON messages on a socket pair, whose other end is in
:mod:`distlab.ranks.processes.starting`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection

import psutil

from distlab.ranks.job import Job, read_job
from distlab.ranks.processes import worker

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_ORPHAN_CHECK = 1.0  # seconds between two looks whether the notebook is still there
_MOST_DESCRIPTORS = 128  # two for each of 64 ranks; Linux passes at most 253 at once


class Server:
    """Forks ranks on request, tells of their deaths, and ends them with everything they started."""

    def __init__(self, client: socket.socket):
        self._client = client
        self._parent = os.getppid()
        self._ranks: set[int] = set()
        self._folder = ""
        # A rank's death must end a select() that waits for requests: Python writes a byte here at each signal, but only
        # for signals that have a handler.
        self._wake, self._wake_end = socket.socketpair()
        for end in (self._wake, self._wake_end):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_end.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # What a rank has started becomes this process's child when the rank ends, not init's: so _end() finds it.
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        """Answers requests until the notebook is gone, then leaves no process behind, nor the files of the last run."""
        self._send(ready=True)
        try:
            while os.getppid() == self._parent:  # a killed notebook closes nothing that a rank still holds
                readable, _, _ = select.select([self._client, self._wake], [], [], _ORPHAN_CHECK)
                if self._wake in readable:
                    self._wake.recv(4096)
                self._reap()
                if self._client in readable and not self._answer():
                    break
        finally:  # whatever ends it, nothing may stay
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)  # it is gone already, unless the notebook was killed

    def _answer(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._client, 65536, _MOST_DESCRIPTORS)
        except ConnectionResetError:  # the notebook was killed before it had read what this process told it
            return False
        if not message:
            return False
        request = json.loads(message)
        if request["do"] == "start":
            self._start(request["folder"], request["digest"], descriptors)
        elif request["do"] == "signal" and request["pid"] in self._ranks:
            os.kill(request["pid"], request["number"])
        elif request["do"] == "end":
            self._end()
            self._send(ended=True)
        return True

    def _start(self, folder: str, digest: str, descriptors: list[int]) -> None:
        """Forks a rank for each pair of descriptors: where it reports to, and where it prints."""
        job = read_job(folder, digest)
        self._folder = folder
        worker.take_environment(job)
        if unknown := [module for module in job.payload.modules if module not in sys.modules]:
            for module in unknown:  # once here, instead of on every rank of every run
                importlib.import_module(module)
            gc.collect()
            gc.freeze()  # what modules hold is not what a rank holds
        pids = [self._fork(job, rank, descriptors) for rank in range(len(descriptors) // 2)]
        for descriptor in descriptors:
            os.close(descriptor)
        self._ranks.update(pids)
        self._send(started=pids)

    def _fork(self, job: Job, rank: int, descriptors: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            report, output = descriptors[2 * rank : 2 * rank + 2]
            for other in set(descriptors) - {report, output}:  # or no rank's end would close what others hold
                os.close(other)
            _become_rank(self._client, job, rank, report, output)
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._ranks:
                self._ranks.discard(pid)
                self._send(exited=pid, status=os.waitstatus_to_exitcode(status))

    def _end(self) -> None:
        """Kills every rank with its session, then whatever they left, which this process has inherited.

        Again and again: what is killed leaves children of its own, and may have forked a moment before.
        """
        while pids := _children():
            for pid in pids:
                _kill(pid)
            self._reap()
            time.sleep(0.001)

    def _send(self, **message) -> None:
        try:
            self._client.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the notebook is gone: serve() ends at its next turn


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without this file
        return [child.pid for child in psutil.Process().children()]


def _kill(pid: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def _become_rank(client: socket.socket, job: Job, rank: int, report: int, output: int) -> None:
    server = os.getppid()
    os.setsid()  # a group of its own: Ctrl-C in a terminal is the notebook's affair, and killpg() ends its children too
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != server:  # it died before the line above, which then asks for nothing
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    client.close()
    redirect(output)
    worker.work(job, rank, Connection(report))


def redirect(output: int) -> None:
    """Sends all that this process prints, native code included, to ``output``; nothing can be read from stdin."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    open_text_streams()


def open_text_streams() -> None:
    """Makes Python write to the descriptors a line at a time, so that a crash loses nothing."""
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def main() -> None:
    """Starts a server on the socket whose descriptor is the first command-line argument."""
    worker.warm_up()
    gc.collect()
    gc.freeze()  # a collection on a rank would write into every object's header, and so copy each page of torch's heap
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
