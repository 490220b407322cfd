"""The Work of a watched operation, and its future: they do what the real ones do, and note when they are waited for."""

from __future__ import annotations

import sys
import types
from datetime import timedelta

import torch
import torch.distributed as dist

from distlab.events import ANY_SOURCE, P2P, Done, Drop, Fail, Message, Wait
from distlab.ranks.torch_inside import at_end_of_backward, is_in_backward, source_of, wrap_ddps_work
from distlab.ranks.watching.log import Log
from distlab.ranks.watching.memory import note_done
from distlab.ranks.watching.uncompiled import uncompiled, with_uncompiled_methods
from distlab.ranks.watching.underway import UnderWay

_NO_TIMEOUT = timedelta(0)


@with_uncompiled_methods
class WatchedWork(dist.Work):
    """The Work of a watched operation: notes when it is waited for.

    A collective's is kept until then, as torch keeps the real one; a send's or receive's is not, so that a Work which
    the learner drops fails as it does unwatched. ``members`` are its group's, as ranks of the run; ``limit`` are the
    seconds after which that gives up, 0 if that is later than the run's end.
    """

    def __init__(
        self,
        real: dist.Work,
        message: Message,
        members: tuple[int, ...],
        log: Log,
        under_way: UnderWay,
        limit: float,
    ):
        super().__init__()
        self._real, self._message, self._log, self._under_way = real, message, log, under_way
        self._members, self._limit = members, limit
        self._is_noted = False
        if message.kind not in P2P:
            self._log.keep(message.id, self)

    def __del__(self):
        if self._message.kind in P2P and not self._is_noted:
            self._under_way.forget(self._message.id)
            self._log.write(Drop(self._message.id, self._log.now()))

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits for the operation, and notes that this rank does.

        Raises RuntimeError where a send or receive is waited for a second time: gloo would wait for ever.
        """
        if self._is_noted and self._message.kind in P2P:
            raise RuntimeError(f"the Work of this {self._message.kind} was waited for before: wait once for each Work")
        when = "now"
        if self._message.kind == "reduce_scatter" and _in_fsdps_backward():
            when = "stream"
            at_end_of_backward(self._note_wait_of_backward)
        if timeout == _NO_TIMEOUT:
            return self._waiting(self._real.wait, when)
        return self._waiting(lambda: self._real.wait(timeout), when, timeout.total_seconds())

    def _note_wait_of_backward(self) -> None:
        self._log.write(Wait(self._message.id, self._log.now(), self._message.place, "backward"))

    def _waiting(self, wait, when: str = "now", limit: float | None = None):
        if not self._is_noted:
            when = when if self._log.is_on_main_thread else "thread"
            limit = self._limit if limit is None else limit
            self._log.write(Wait(self._message.id, self._log.now(), self._log.place(), when, limit))
        try:
            with self._log.unseen():
                result = wait()
        except BaseException:  # an interrupt too: whatever it was, this thread waits no more
            self._log.write(Fail(self._message.id, self._log.now()))
            raise
        self._note_done()
        return result

    def _note_done(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            source = self._members[source_of(self._real)] if self._message.peer == ANY_SOURCE else None
            self._log.write(Done(self._message.id, self._log.now(), source))
            self._under_way.end(self._message.id)
            if self._log.is_on_main_thread:
                note_done(self._log)
        self._log.release(self._message.id)

    def get_future(self) -> torch.futures.Future:
        """The real future; inside a backward pass this rank waits for it at the end of the pass, as DDP does."""
        self._under_way.forget(self._message.id)  # what is chained to the future may use the memory, rightly
        future = self._real.get_future()
        if is_in_backward():
            at_end_of_backward(lambda: self._waiting(self._real.wait, when="backward"))
            return future
        return _WatchedFuture(future, self)

    def is_completed(self) -> bool:
        """Whether the operation is over; a yes counts as having waited."""
        is_over = self._real.is_completed()
        if is_over and not self._is_noted:
            self._waiting(self._real.wait)
        return is_over

    def synchronize(self) -> None:
        """Waits as :meth:`wait` does."""
        self._waiting(self._real.synchronize)

    def result(self):
        """What the real Work gives."""
        return self._real.result()

    def exception(self):
        """What the real Work gives."""
        return self._real.exception()

    def is_success(self) -> bool:
        """What the real Work says."""
        return self._real.is_success()

    def source_rank(self) -> int:
        """The group rank that sent what was received."""
        return self._real.source_rank()

    def _source_rank(self) -> int:
        return source_of(self._real)


def _in_fsdps_backward() -> bool:
    """Whether it is FSDP that calls, from a hook of the backward pass."""
    if not is_in_backward():
        return False
    frame: types.FrameType | None = sys._getframe(2)
    while frame and not frame.f_globals.get("__name__", "").startswith("torch.distributed.fsdp."):
        frame = frame.f_back
    return frame is not None


@with_uncompiled_methods
class _WatchedFuture(torch.futures.Future):
    """A future whose wait is noted, and that of every future chained to it."""

    def __init__(self, real: torch.futures.Future, work: WatchedWork):
        super().__init__()
        self._work = work
        real.add_done_callback(self._finish)

    def _finish(self, real: torch.futures.Future) -> None:
        try:
            self.set_result(real.value())
        except Exception as error:  # the operation's, or whatever a chained callback raised
            self.set_exception(error)

    def wait(self):
        """Waits for the operation, and notes that this rank does."""
        return self._work._waiting(super().wait)

    def then(self, callback) -> torch.futures.Future:
        """The future of what ``callback`` makes of this one."""
        return _WatchedFuture(super().then(callback), self._work)


def keep_ddps_work() -> None:
    """Has DDP's reducer keep the Work that DDP.join gives it.

    It keeps the C++ half only, waits, and then asks that for a future; the Python half, which could answer, would be
    gone by then.
    """
    kept: dict[int, dist.Work] = {}

    def keeping(give):
        def give_and_keep(reducer, work, *args):
            kept[id(reducer)] = work
            return give(reducer, work, *args)

        return uncompiled(give_and_keep)

    wrap_ddps_work(keeping)
