"""What each rank does from birth to death."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import random
import signal
import sys
import traceback
import types
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from distlab.events import Exit
from distlab.ranks import cells, torch_inside
from distlab.ranks.job import Job
from distlab.ranks.processes import inherited, threads
from distlab.ranks.processes.reports import Reports
from distlab.ranks.processes.stacks import PASSES_THROUGH
from distlab.ranks.shipping import packing
from distlab.ranks.shipping.reasons import TEXT_LIMIT, text_of
from distlab.ranks.verdicts.failures import Failure
from distlab.ranks.verdicts.results import running_functions
from distlab.ranks.watching.counting import OperatorCounter
from distlab.ranks.watching.groups import watch_groups
from distlab.ranks.watching.log import Log, NoLog, counting
from distlab.ranks.watching.memory import follow_memory
from distlab.ranks.watching.spans import open_spans

LINGER = 1.0  # seconds that a finished rank stays for the others: one may still be connecting to it in new_group
PATIENCE = 5.0  # seconds that threads of a finished function get
ON_RANK = "DISTLAB_ON_RANK"


def work(job: Job, rank: int, connection, when_lost=lambda: None) -> None:
    """Runs the job's function as one rank and reports to ``connection``; never returns.

    Sends ("ready",), waits for the word to go, then sends ("done", pickled value) or ("failed", Failure). Calls
    ``when_lost``, in another thread, when the notebook has closed its end.
    """
    cells.install(job.payload.sources)
    _listen_for_questions(job, rank)
    leave = _report_os_exit(connection, job)
    is_mine = functools.partial(cells.is_learners, sources=job.payload.sources)
    log = _open_log(job, rank)
    reports = Reports(connection, lambda: log.answer(threads.acting(is_mine)), when_lost)
    try:
        _enter(job, rank)
        reports.wait_for_go()
        follow_memory(log, job.payload.modules)
        with counting(log):
            value = _call(job)
        _wait_for_threads(is_mine)
        log.write(Exit("returned", log.now()))
        packed = packing.pack_value(value)
        _close_output()
        reports.send("done", packed)
        reports.linger(LINGER)
    except BaseException as error:  # whatever the function raised, sys.exit included, is what the parent asks for
        _flush()
        with contextlib.suppress(OSError):  # what was raised may be that no more can be written
            log.write(Exit("raised", log.now()))
        reports.send("failed", describe(error, job.payload.sources))
    leave(0)


def _wait_for_threads(is_learners) -> None:
    """Lets threads finish that the function has left behind, as Python does before it ends; not without end."""
    for name in threads.join_others(is_learners, PATIENCE):
        print(
            f"Note: the function returned while its thread {name!r} went on, and is not waited for after "
            f"{PATIENCE:g} s, where Python would wait for its end: join it, or start it with daemon=True",
            file=sys.stderr,
        )


def _open_log(job: Job, rank: int) -> Log | NoLog:
    """Has this rank watched, as far as the job asks for it."""
    if not job.record:
        return NoLog()
    log = Log(job.log_file(rank), job.payload.sources, job.started, OperatorCounter() if job.record is True else None)
    watch_groups(log, rank, job.group_timeout)
    for what in dict.fromkeys(torch_inside.MISSING):
        log.note(what)
    open_spans(log)
    return log


def _enter(job: Job, rank: int) -> None:
    """Makes this process a rank: environment, settings, seeds, device, process group."""
    take_environment(job)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), PYTHONHASHSEED=job.hash_seed(rank))
    os.chdir(job.working_directory)
    sys.path[:] = job.path
    sys.argv[:] = [job.name]
    inherited.apply(job.inherited)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if job.device == "cuda":
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
    _join_group(job, rank)
    _seed(job.seed)


def take_environment(job: Job) -> None:
    """Makes this process's environment the job's, touching only what differs: each change is a call into the system."""
    for name in os.environ.keys() - job.environment.keys():
        del os.environ[name]
    os.environ.update(job.environment.items() - os.environ.items())


def warm_up() -> None:
    """Does once, before ranks are forked, what each would otherwise do first."""
    torch.set_num_threads(1)
    with OperatorCounter():
        torch.ones(1)
    _seed(0)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would note a traceback for every absent accelerator
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _join_group(job: Job, rank: int) -> None:
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if job.device == "cuda" else "gloo",
        # C++ takes no name that isn't UTF-8 as a str, but as bytes, which torch's stub doesn't know.
        store=dist.FileStore(os.fsencode(job.store), job.num_ranks),  # type: ignore[arg-type]
        rank=rank,
        world_size=job.num_ranks,
        timeout=timedelta(seconds=job.group_timeout),
    )


def _call(job: Job):
    fn, args = packing.unpack(job.payload.data)
    _become_main(fn, *args)
    return fn(*args)


def _become_main(*shipped) -> None:
    """Puts the notebook's names into ``__main__``, where pickle looks for classes defined in a cell."""
    main = types.ModuleType("__main__")
    for obj in shipped:
        if isinstance(obj, types.FunctionType) and obj.__module__ == "__main__":
            main.__dict__.update(obj.__globals__)
    sys.modules["__main__"] = main


def describe(error: BaseException, sources: dict[str, cells.Source]) -> Failure:
    """Puts an exception into words and lines: as text, since not every exception survives pickling."""
    steps = traceback.extract_tb(error.__traceback__)
    outside = [step for step in steps if not cells.is_own(step.filename)]
    full = "".join(traceback.format_exception(error))[-TEXT_LIMIT:]
    message = text_of(error)
    return Failure(
        kind="raised",
        type=type(error).__name__,
        message=message,
        frames=_learners_frames(steps, sources),
        function=_operation(outside),
        traceback=cells.rename(full, sources),
        raised_at=_library_line(outside, sources) if not message else None,
        functions=running_functions(error, sources),
    )


def _operation(steps) -> str:
    """The function of torch.distributed in which it was raised, or else the innermost function."""
    names = [step.name for step in steps if "torch/distributed/" in step.filename and step.name not in PASSES_THROUGH]
    return names[0] if names else steps[-1].name if steps else ""


def _library_line(steps, sources: dict[str, cells.Source]) -> cells.Frame | None:
    """The line that raised, if it is a library's and not the learner's."""
    if not steps or cells.is_learners(steps[-1].filename, sources) or not steps[-1].line:
        return None
    return cells.library_frame(steps[-1].filename, steps[-1].lineno or 0, steps[-1].name)


def _listen_for_questions(job: Job, rank: int) -> None:
    """Writes the stack to a file when asked by SIGUSR1 and when dying of a signal; works while stuck in C++."""
    file = open(job.stack_file(rank), "w")  # noqa: SIM115 - open as long as the process lives
    faulthandler.enable(file)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file, all_threads=False)


def _report_os_exit(connection, job: Job):
    """Lets ``os._exit`` say where it was called before it ends the rank; returns the real one."""
    leave, rank_pid = os._exit, os.getpid()

    def exit_and_say_so(status):
        try:
            if os.getpid() == rank_pid:
                _flush()
                frames = _learners_frames(traceback.extract_stack(), job.payload.sources)
                connection.send(("failed", Failure("raised", "os._exit", str(status), frames)))
        finally:  # the notebook may be gone
            leave(status)

    os._exit = exit_and_say_so
    return leave


def _learners_frames(steps, sources: dict[str, cells.Source]) -> tuple[cells.Frame, ...]:
    return tuple(
        cells.frame(step.filename, step.lineno or 0, step.name, sources)
        for step in steps
        if cells.is_learners(step.filename, sources)
    )


def _close_output() -> None:
    """Lets the reader of this rank's output see its end now, before the process is torn down."""
    _flush()
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the learner closed it, or put something of their own in its place
            pass
