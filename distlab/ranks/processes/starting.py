"""Starts, questions and ends the ranks of one run: forked from the server, or spawned where fork is unsafe."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from distlab.ranks.interrupts import put_off
from distlab.ranks.job import Job
from distlab.ranks.processes.environment import native_environment
from distlab.ranks.processes.spawning import SpawnedRanks

START_METHOD = "DISTLAB_START_METHOD"
# Seconds: to import torch on a busy machine; to fork or end ranks; from the end of a connection to that of a process.
_SERVER_PATIENCE = 60.0
_END_PATIENCE = 5.0
_LAST_PATIENCE = 1.0


class StartError(RuntimeError):
    """The ranks could not be started; the message holds what the system said."""


def start_method() -> str:
    """How ranks start here: "fork" on Linux, "spawn" elsewhere, or as the variable DISTLAB_START_METHOD says."""
    method = os.environ.get(START_METHOD) or ("fork" if can_fork() else "spawn")
    if method not in ("fork", "spawn"):
        raise ValueError(f'{START_METHOD} must be "fork" or "spawn", not {method!r}')
    return method


def can_fork() -> bool:
    """Whether ranks can be forked here: on Linux only, since the fork server asks Linux to end them with it."""
    return sys.platform.startswith("linux")


def _above_standard(connection: socket.socket) -> socket.socket:
    """The same connection by a descriptor that is no standard stream's: those may be closed here, and taken."""
    if connection.fileno() > 2:
        return connection
    import fcntl

    moved = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    connection.close()
    return socket.socket(fileno=moved)


class ForkServer:
    """This process's end of the fork server, started once and kept for all runs until :meth:`close`."""

    def __init__(self):
        # SEQPACKET keeps messages apart, so that one recv() is one message with its descriptors, and tells of the end.
        self._socket, theirs = map(_above_standard, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        # -P: the folder in which the notebook stands must not shadow a module that the server imports.
        command = [sys.executable, "-P", "-m", "distlab.ranks.processes.server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            env=native_environment(),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # what it says if it dies
            cwd="/",  # not a folder that the learner may want to remove
        )
        theirs.close()
        self.owner, self.pid = os.getpid(), self._process.pid
        self.exits: dict[int, int] = {}
        self.is_ready = False

    @property
    def is_usable(self) -> bool:
        """Whether this very process started it and it still lives."""
        return self.owner == os.getpid() and self._process.poll() is None

    def request(self, descriptors: list[int] | None = None, **message) -> None:
        """Sends one request, waiting first for a server that is still importing torch."""
        if not self.is_ready:
            self.read_until("ready", _SERVER_PATIENCE)
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors or [])
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def read(self, patience: float) -> dict:
        """Reads one message, keeping account of exits; {} when none came within ``patience`` seconds."""
        self._socket.settimeout(patience)
        try:
            text = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return {}
        except ConnectionResetError:
            raise self._lost() from None
        if not text:
            raise self._lost()
        message = json.loads(text)
        self.is_ready |= "ready" in message
        if "exited" in message:
            self.exits[message["exited"]] = message["status"]
        return message

    def read_until(self, key: str, patience: float):
        """Reads messages until one has ``key`` and returns its value."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            message = self.read(deadline - time.monotonic())
            if key in message:
                return message[key]
        raise StartError(f"the process that starts the ranks did not answer within {patience:g} s")

    def _lost(self) -> StartError:
        try:
            _, said = self._process.communicate(timeout=_LAST_PATIENCE)  # it is gone a moment after its connection
            words = said.decode(errors="replace").strip()[-2000:] or f"exit code {self._process.returncode}"
        except subprocess.TimeoutExpired:
            words = "it closed its connection"
        return StartError(f"the process that starts the ranks has ended: {words}")

    def close(self) -> None:
        """Ends the server, which ends all ranks, and waits until it is gone."""
        self._socket.close()
        if not self.is_ready:
            self._process.kill()  # it has no ranks yet, and would go on until torch is imported
        with self._process:  # closes its stderr too
            try:
                self._process.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()


class _KeptServer:
    """The one fork server of this process; a new one takes its place when it is lost."""

    def __init__(self):
        self._server: ForkServer | None = None

    def get(self) -> ForkServer:
        """Returns a usable server, starting one if need be."""
        if self._server is None or not self._server.is_usable:
            self.discard()
            with put_off():
                self._server = ForkServer()
        return self._server

    def discard(self) -> None:
        """Ends the server, if this process owns one."""
        server, self._server = self._server, None
        if server is not None and server.owner == os.getpid():
            server.close()


kept_server = _KeptServer()
atexit.register(kept_server.discard)


def warm_up() -> None:
    """Starts the fork server without waiting for it, so that the first run need not."""
    if start_method() == "fork":
        kept_server.get()


class ForkedRanks:
    """The ranks of one run, forked from the server."""

    def __init__(self):
        self._server = kept_server.get()
        self._server.exits.clear()
        self._pids: dict[int, int] = {}

    def start(self, job: Job) -> list[tuple[Connection, int]]:
        """Starts the ranks; returns for each the connection it reports to and the descriptor of what it prints."""
        reports = [multiprocessing.Pipe() for _ in range(job.num_ranks)]
        outputs = [os.pipe() for _ in range(job.num_ranks)]
        try:
            self._request_start(job, reports, outputs)
        except BaseException:  # an interrupt too
            for output, _ in outputs:
                os.close(output)
            raise
        return [(ours, output) for (ours, _), (output, _) in zip(reports, outputs, strict=True)]

    def _request_start(self, job: Job, reports: list, outputs: list) -> None:
        theirs = [fd for (_, end), (_, output) in zip(reports, outputs, strict=True) for fd in (end.fileno(), output)]
        try:
            self._server.request(theirs, do="start", folder=job.folder, digest=job.write())
        finally:
            for _, end in reports:
                end.close()
            for _, output in outputs:
                os.close(output)
        self._pids = dict(enumerate(self._server.read_until("started", _END_PATIENCE)))

    def exit_statuses(self) -> dict[int, int]:
        """The exit codes of the ranks that have ended, negative for a signal."""
        while self._server.read(0):
            pass
        return {rank: self._server.exits[pid] for rank, pid in self._pids.items() if pid in self._server.exits}

    def pids(self) -> list[int]:
        """The process ids of the ranks."""
        return list(self._pids.values())

    def ask_for_stack(self, rank: int) -> None:
        """Has a rank write where it stands to its stack file."""
        self._server.request(do="signal", pid=self._pids[rank], number=int(signal.SIGUSR1))

    def end(self, wait: bool) -> None:
        """Ends the ranks and all that they started, and waits for it if asked; the server too, if it does not obey."""
        if not self._server.is_ready:
            return  # it has been asked for nothing yet, and goes on to import torch for the next run
        try:
            self._server.request(do="end")
            if wait:
                self._server.read_until("ended", _END_PATIENCE)
        except BaseException:  # an interrupt too: no rank may outlive its run
            kept_server.discard()
            raise


def new_ranks(start: str = "auto") -> ForkedRanks | SpawnedRanks:
    """Prepares the ranks of one run: "fork", "spawn", or "auto", by this system's start method."""
    return ForkedRanks() if (start_method() if start == "auto" else start) == "fork" else SpawnedRanks()
