"""run(): start ranks, collect what they report, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from multiprocessing.connection import Connection, wait

from distlab.ranks import arguments
from distlab.ranks.cells import rename
from distlab.ranks.interrupts import Interrupted, OneInterrupt
from distlab.ranks.job import Job, run_folder
from distlab.ranks.limits import ClockLimit, WorkLimit
from distlab.ranks.outcome import NONE_HAD_BEGUN, RankError, Run, describe_interrupt, rebuilt
from distlab.ranks.output import Screen, Tape, name_ranks
from distlab.ranks.processes.stacks import read_stack
from distlab.ranks.processes.starting import ForkedRanks, SpawnedRanks, new_ranks
from distlab.ranks.processes.worker import ON_RANK
from distlab.ranks.settings import Settings
from distlab.ranks.shipping import packing
from distlab.ranks.verdicts.failures import Failure, death, verdict
from distlab.ranks.verdicts.listening import Deaf, Listener
from distlab.ranks.verdicts.loose_ends import loose_ends
from distlab.recording import Recording

GROUP_LIMIT = 30.0
_POLL = 0.03
_GRACE = 0.7
_STACK_PATIENCE = 0.3

_one_at_a_time = threading.Lock()


def run(
    fn,
    *args,
    ranks: int = 2,
    device: str = "auto",
    timeout: float = 60,
    seed: int = 0,
    record: bool | str = True,
    start: str = "auto",
) -> Run:
    """Runs ``fn(*args)`` on ``ranks`` fresh processes at once, the process group ready when it starts.

    ``fn`` asks ``dist.get_rank()`` who it is. ``device`` is "cpu" (gloo), "cuda" (NCCL, one GPU a rank) or "auto":
    CUDA when there are two GPUs or more and enough for all ranks. ``timeout`` is in seconds, for the whole run. torch,
    numpy and random start from ``seed``, the same on every rank. ``record`` is True (messages and compute), "messages"
    (nearly free) or False (for anything timed): only in a recorded run are hangs, mismatches and groups made in
    different order named. The ranks hold copies: they cannot change the notebook's objects, and what the notebook has
    set for its process (default dtype, grad mode, print options, log level and the like) holds on them.

    The same function runs unchanged under torchrun once that has made the group, unless it leans on what ranks share
    only here: forked ranks (``start="fork"``, which is "auto" on Linux) have the same hash seed (so the order of sets),
    the same imported modules and, as a rule, the same memory addresses. With ``start="spawn"``, which takes seconds,
    each is a fresh Python with addresses and a hash seed of its own, as under torchrun.

    Returns a Run with ``.values``, ``.output`` and ``.recording``. Raises RankError when a rank does not finish,
    ValueError or TypeError naming the argument when one is wrong.
    """
    arguments.check(fn, args, ranks=ranks, device=device, timeout=timeout, seed=seed, record=record, start=start)
    settings = Settings(ranks, arguments.pick_device(device, ranks), seed, record, start)
    return launch(fn, args, settings, ClockLimit(timeout))


def launch(fn, args: tuple, settings: Settings, limit, quiet: bool = False, instead=None, follow=None) -> Run:
    """Runs checked arguments; ``quiet`` shows no output, ``instead`` is as in :func:`packing.pack`.

    ``follow(look)`` is called all the while; ``look()`` returns what each rank has printed and the Recording.
    """
    if ON_RANK in os.environ:
        raise RuntimeError("run() was called on a rank: only the notebook starts ranks. Call the function itself.")
    with OneInterrupt(NONE_HAD_BEGUN) as interrupt:
        payload = packing.pack(fn, args, instead)
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("another run() has not finished in this notebook: one at a time.")
        try:
            with run_folder() as folder:
                job = settings.job(folder, fn, payload, limit.seconds + GROUP_LIMIT)
                return _Supervisor(job, limit, new_ranks(settings.start), quiet, follow).supervise(interrupt)
        finally:
            _one_at_a_time.release()


class _Supervisor:
    """Watches the ranks of one run from start to end."""

    def __init__(self, job: Job, limit, ranks: ForkedRanks | SpawnedRanks, quiet: bool, follow):
        self._job, self._limit, self._quiet, self._follow = job, limit, quiet, follow
        self._ranks = ranks
        self._connections: dict[int, Connection] = {}
        self._tapes: list[Tape] = []
        self._screen = Screen(self._tapes, partial(rename, sources=job.payload.sources))
        self._ready: set[int] = set()
        self._values: dict[int, bytes] = {}
        self._failures: dict[int, Failure] = {}
        self._listener = Listener(job, self._ask_for_threads) if job.record else Deaf()

    def supervise(self, interrupt: OneInterrupt) -> Run:
        """Starts the ranks, waits for them, ends them, and returns or raises what came of it."""
        try:
            self._start()
            reason = self._collect()
            self._stop_the_rest()
            finding = self._last_finding()
        except KeyboardInterrupt:
            raise Interrupted(self._where_all_stand()) from None
        finally:
            interrupt.hold("Interrupted just as the run ended.")
            try:
                self._ranks.end(wait=len(self._values) < self._job.num_ranks)
            finally:
                output = self._close()
        return self._conclude(reason, finding, output)

    def _where_all_stand(self) -> str:
        if len(self._ready) < self._job.num_ranks:
            return NONE_HAD_BEGUN
        self._stop_the_rest()
        return describe_interrupt(self._failures, sorted(self._values))

    def _close(self) -> list[str]:
        """Closes all that was open to the ranks, shows what they printed and returns it."""
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        return self._screen.close(show=not self._quiet)

    def _last_finding(self) -> str:
        """What the events show, all read, and before the ranks are ended: that would look like ranks that raise."""
        self._listener.listen()
        return self._listener.last_finding() or self._listener.lost_send()

    def _conclude(self, reason: str, finding: str, output: list[str]) -> Run:
        """Returns the run if every rank finished and nothing was wrong, raises RankError otherwise."""
        failures = self._failures | ({} if self._has_raised() else self._listener.misfits())
        values, failures = ([], failures) if failures else rebuilt(self._values)
        if not failures:
            recording = self._listener.recording()
            if recording is not None and not self._quiet:
                for line in loose_ends(recording):
                    print(f"Note: {line}")
            return Run(self._job.name, self._job.device, values, output, recording)
        sentence, first = verdict(failures, sorted(self._values), reason, finding)
        raise RankError(sentence, failures, first, output)

    def _has_raised(self) -> bool:
        """Whether a rank raised by itself: what does not fit explains more than what the backend says of it."""
        raised = [failure for failure in self._failures.values() if failure.kind == "raised"]
        return any(not failure.is_victim and not failure.is_backends for failure in raised)

    def _start(self) -> None:
        started = self._ranks.start(self._job)
        self._connections = {rank: connection for rank, (connection, _) in enumerate(started)}
        self._tapes += [Tape(output) for _, output in started]

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in range(self._job.num_ranks) if rank not in self._values and rank not in self._failures]

    def _collect(self) -> str:
        """Listens until every rank has reported; returns why not, if the time is up or others failed first."""
        give_up = float("inf")
        start_limit = WorkLimit(GROUP_LIMIT, work=GROUP_LIMIT * self._job.num_ranks)  # each may have to import torch
        while self._missing and time.monotonic() < give_up:
            self._listen()
            self._listener.listen()
            if self._follow:
                self._follow(self._look)
            if finding := self._listener.finding():
                return finding
            if self._failures:
                give_up = min(give_up, time.monotonic() + _GRACE)
            if len(self._ready) == self._job.num_ranks:
                if self._limit.passed(self._ranks.pids()):
                    return self._limit.words
            elif start_limit.passed(self._ranks.pids()):
                absent = sorted(self._connections.keys() - self._ready)
                return f"the process group was not made within {GROUP_LIMIT:g} s, for want of {name_ranks(absent)}"
            if not self._quiet:
                self._screen.tick()
        return ""

    def _look(self) -> tuple[list[str], Recording | None]:
        return self._screen.texts(), self._listener.recording(is_over=False)

    def _listen(self) -> None:
        for connection in wait(list(self._connections.values()), _POLL):
            self._receive(next(rank for rank, known in self._connections.items() if known is connection))
        for rank, status in self._ranks.exit_statuses().items():
            if rank in self._missing:
                self._bury(rank, status)

    def _receive(self, rank: int) -> None:
        try:
            kind, *content = self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            self._connections.pop(rank).close()
            return
        if kind == "ready":
            self._ready.add(rank)
            if len(self._ready) == self._job.num_ranks:
                self._go()
        elif kind == "done":
            self._values[rank] = content[0]
        elif kind == "failed":
            self._failures[rank] = content[0]

    def _ask_for_threads(self, rank: int) -> None:
        """Has a rank write into its log which of its threads could still act."""
        with contextlib.suppress(OSError):  # it has died since, which is noted elsewhere
            self._connections[rank].send(("threads",))

    def _go(self) -> None:
        """Lets the functions begin: every rank is in the process group, so that none can leave while another joins."""
        self._limit.start()
        for connection in self._connections.values():
            with contextlib.suppress(BrokenPipeError):  # it has died since, which is noted elsewhere
                connection.send(("go",))

    def _bury(self, rank: int, status: int) -> None:
        """Accounts for a rank whose process has ended, once all that it reported has been read."""
        while rank in self._connections and self._connections[rank].poll():
            self._receive(rank)
        if rank in self._missing:
            self._listener.leave(rank, "died")
            frames, _ = self._stack(rank)
            self._failures[rank] = death(status, frames, self._tapes[rank].last_words())

    def _stack(self, rank: int):
        return read_stack(self._job.stack_file(rank), self._job.payload.sources)

    def _stop_the_rest(self) -> None:
        """Notes where the ranks that are still running stand."""
        running = [rank for rank in self._missing if rank in self._connections]
        for rank in running:
            self._ranks.ask_for_stack(rank)
        deadline = time.monotonic() + _STACK_PATIENCE
        while time.monotonic() < deadline and not all(os.path.getsize(self._job.stack_file(r)) for r in running):
            time.sleep(0.005)
        for rank in running:
            self._receive_last(rank)

    def _receive_last(self, rank: int) -> None:
        """Takes a report that came in at the last moment, or else the rank's stack."""
        while rank in self._connections and self._connections[rank].poll():
            self._receive(rank)
        if rank in self._missing:
            frames, operation = self._stack(rank)
            stopped = Failure("stopped", frames=frames, function=operation)
            self._failures[rank] = self._listener.waiting(rank) or stopped
