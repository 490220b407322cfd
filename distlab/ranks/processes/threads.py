"""Threads of a rank: which of them could still do something by themselves."""

from __future__ import annotations

import concurrent.futures.thread
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

_STDLIB = sysconfig.get_paths()["stdlib"]
_TORCH_DISTRIBUTED = str(Path("torch", "distributed")) + "/"
_LOOPS = ("asyncio/", "sched.py")  # they call what is due later: a look at the stack does not tell what
_POLL = 0.02


def acting(is_learners: Callable[[str], bool]) -> tuple[int, ...]:
    """The idents of this process's threads, the caller's left out, that could still act by themselves.

    One that waits without a limit for another thread (a join, an Event or Condition, an empty queue) cannot, nor can a
    library's that only watches or serves (a progress bar's, a pool's without work). In a plain lock's acquire() it
    counts as able: its stack looks like that of a thread that computes. ``is_learners`` says of a file whether it is
    the learner's.
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    return tuple(ident for ident, frame in frames.items() if _could_act(frame, known.get(ident), is_learners))


def join_others(is_learners: Callable[[str], bool], patience: float) -> list[str]:
    """Waits, as Python does before it ends, for threads that are no daemons; not for those that wait for ever.

    Returns the names of those that still act after ``patience`` seconds, for which Python would wait on.
    """
    deadline = time.monotonic() + patience
    while (left := _acting_others(is_learners)) and time.monotonic() < deadline:
        left[0].join(_POLL)
    return [thread.name for thread in left]


def _acting_others(is_learners: Callable[[str], bool]) -> list[threading.Thread]:
    main = threading.current_thread()
    others = [thread for thread in threading.enumerate() if thread is not main and not thread.daemon]
    could_act = acting(is_learners) if others else ()
    return [thread for thread in others if thread.ident in could_act]


def _could_act(frame: types.FrameType, thread: threading.Thread | None, is_learners: Callable[[str], bool]) -> bool:
    if _waits_for_a_thread(frame):
        return False
    files = [each.f_code.co_filename for each in _stack(frame)]
    if any(is_learners(file) or _TORCH_DISTRIBUTED in file for file in [*files, *_targets(thread)]):
        return True
    return not _is_stdlib(files[0]) or any(loop in file for file in files for loop in _LOOPS)


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "-packages" not in file  # libraries may lie in a folder of it


def _stack(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_for_a_thread(frame: types.FrameType) -> bool:
    """Whether a stack ends in a wait that only another thread of this process can end."""
    code = frame.f_code
    if code is concurrent.futures.thread._worker.__code__:
        return frame.f_locals["work_queue"].empty()
    names = frame.f_locals
    if code is threading.Condition.wait.__code__:  # the lock is let go by whoever notifies, before this thread runs
        return names["timeout"] is None and "waiter" in names and names["waiter"].locked()
    if code.co_filename == threading.__file__ and code.co_name in ("join", "_wait_for_tstate_lock"):
        return names.get("timeout") in (None, -1) and names["self"].is_alive()
    return False


def _targets(thread: threading.Thread | None) -> Iterator[str]:
    """The files of what a thread was told to run."""
    for name in ("_target", "function", "run"):
        code = getattr(getattr(thread, name, None), "__code__", None)
        if code is not None:
            yield code.co_filename
