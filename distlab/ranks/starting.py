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
import sysconfig
import time
from multiprocessing.connection import Connection
from pathlib import Path

from distlab.ranks.job import Job

START_METHOD = "DISTLAB_START_METHOD"
_SERVER_PATIENCE = 60.0
_END_PATIENCE = 5.0
_LAST_PATIENCE = 1.0


class StartError(RuntimeError):
    """The ranks could not be started; the message holds what the system said."""


def start_method() -> str:
    """How ranks start here: "fork" on Linux, "spawn" elsewhere, or as the variable DISTLAB_START_METHOD says."""
    method = os.environ.get(START_METHOD) or ("fork" if sys.platform.startswith("linux") else "spawn")
    if method not in ("fork", "spawn"):
        raise ValueError(f'{START_METHOD} must be "fork" or "spawn", not {method!r}')
    return method


def native_environment() -> dict[str, str]:
    """The environment in which a Python that becomes a rank imports torch: quiet, one thread, on loopback only."""
    libraries = [str(Path(__file__).resolve().parents[2]), *(sysconfig.get_paths()[k] for k in ("purelib", "platlib"))]
    return os.environ | RANK_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(libraries)}


RANK_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "MASTER_ADDR": "127.0.0.1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",  # DDP then names the parameters that got no gradient
    **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    **({"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": ""} if os.name == "nt" else {}),
}


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
        self._socket, theirs = map(_above_standard, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        command = [sys.executable, "-P", "-m", "distlab.ranks.server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, env=native_environment(), pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        theirs.close()
        self.owner, self.pid = os.getpid(), self._process.pid
        self.exits: dict[int, int] = {}
        self._is_ready = False

    @property
    def is_usable(self) -> bool:
        """Whether this very process started it and it still lives."""
        return self.owner == os.getpid() and self._process.poll() is None

    def request(self, descriptors: list[int] | None = None, **message) -> None:
        """Sends one request, waiting first for a server that is still importing torch."""
        while not self._is_ready:
            self.read(_SERVER_PATIENCE)
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
        self._is_ready |= "ready" in message
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
            code = self._process.wait(_LAST_PATIENCE)  # its connection closes a moment before it is gone
            words = self._process.stderr.read().decode(errors="replace").strip()[-2000:] or f"exit code {code}"
        except subprocess.TimeoutExpired:
            words = "it closed its connection"
        return StartError(f"the process that starts the ranks has ended: {words}")

    def close(self) -> None:
        """Ends the server, which ends all ranks, and waits until it is gone."""
        self._socket.close()
        try:
            self._process.wait(_END_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()


class _KeptServer:
    """The one fork server of this process; a new one takes its place when it is lost."""

    def __init__(self):
        self._server: ForkServer | None = None

    def get(self) -> ForkServer:
        """Returns a usable server, starting one if need be."""
        if self._server is None or not self._server.is_usable:
            self.discard()
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
        theirs = [fd for (_, end), (_, output) in zip(reports, outputs, strict=True) for fd in (end.fileno(), output)]
        try:
            self._server.request(theirs, do="start", folder=job.folder, digest=job.write())
        finally:
            for _, end in reports:
                end.close()
            for _, output in outputs:
                os.close(output)
        self._pids = dict(enumerate(self._server.read_until("started", _END_PATIENCE)))
        return [(ours, output) for (ours, _), (output, _) in zip(reports, outputs, strict=True)]

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
        try:
            self._server.request(do="end")
            if wait:
                self._server.read_until("ended", _END_PATIENCE)
        except BaseException:  # an interrupt too: no rank may outlive its run
            kept_server.discard()
            raise


class SpawnedRanks:
    """The ranks of one run, each a fresh Python."""

    def __init__(self):
        self._processes: dict[int, subprocess.Popen] = {}

    def start(self, job: Job) -> list[tuple[Connection, int]]:
        """Starts the ranks; returns for each the connection it reports to and the descriptor of what it prints."""
        digest = job.write()
        return [self._start(job.folder, digest, rank) for rank in range(job.num_ranks)]

    def _start(self, folder: str, digest: str, rank: int) -> tuple[Connection, int]:
        ours, theirs = multiprocessing.Pipe()
        handle = theirs.fileno()
        if os.name == "nt":
            os.set_handle_inheritable(handle, True)
            options = {"close_fds": False}
        else:
            options = {"pass_fds": [handle], "start_new_session": True}
        self._processes[rank] = subprocess.Popen(
            [sys.executable, "-P", "-m", "distlab.ranks.spawned", folder, digest, str(rank), str(handle)],
            env=native_environment(),
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


def new_ranks() -> ForkedRanks | SpawnedRanks:
    """Prepares the ranks of one run by this system's start method."""
    return ForkedRanks() if start_method() == "fork" else SpawnedRanks()
