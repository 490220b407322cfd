"""Watches ordinary torch.distributed code: a process group and a Work that note what passes, and do what the real
ones do.

The watching group is put where torch makes groups, so that init_process_group, new_group, device meshes, DDP, FSDP,
DTensor and pipelining are all seen by the same means, and get_backend() still says gloo.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from distlab.events import ANY_SOURCE, P2P, Done, Drop, MakeGroup, Message, Wait
from distlab.ranks.holding import note_done, note_issued
from distlab.ranks.log import Log
from distlab.ranks.output import name_ranks
from distlab.ranks.reading import READINGS

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
_NO_TIMEOUT = timedelta(0)


def unseen():
    """Hides from the counting of compute what the learner did not call: what a backend does inside a message."""
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


class WatchedGroup(dist.ProcessGroup):
    """Passes every operation on to a real group, and writes it down first."""

    def __init__(self, real: dist.ProcessGroup, index: int, members: tuple[int, ...], log: Log):
        super().__init__(real.rank(), real.size())
        self.real, self.index, self.members, self.log = real, index, members, log
        self._sequence: Counter = Counter()
        self._take_over(real)

    def _take_over(self, real: dist.ProcessGroup) -> None:
        """Makes torch find in this group what it found in the real one."""
        for device in real._device_types:
            backend = real._get_backend(device)
            self._register_backend(device, _backend_type(backend), backend)
        self._set_default_backend(_backend_type(real._get_backend(real._device_types[0])))
        self._set_group_name(real.group_name)
        self._set_group_desc(real.group_desc)

    def watch(self, method: str, args: tuple, kwargs: dict):
        """Notes one operation and starts it on the real group."""
        message = self._note(method, args, kwargs)
        note_issued(self.log, args, kwargs)
        with unseen():
            work = getattr(self.real, method)(*args, **kwargs)
        return WatchedWork(work, message, self)

    def _note(self, method: str, args: tuple, kwargs: dict) -> Message:
        fields = READINGS[method](self.real.size(), *args, **kwargs)
        channel = (fields["kind"], fields.get("peer"), fields.get("tag")) if "tag" in fields else "collective"
        self._sequence[channel] += 1
        if method in P2P and not 0 <= fields["peer"] < self.real.size():
            most = self.real.size() - 1
            raise ValueError(f"{method} expects a rank of the group, from 0 to {most}, got {fields['peer']}")
        if method in P2P and fields["peer"] == self.real.rank():
            mine = self.members[fields["peer"]]
            raise ValueError(f"{method} expects another rank, got this rank itself, {mine}: copy the tensor instead")
        for name in ("peer", "root"):
            if fields.get(name) not in (None, ANY_SOURCE):
                fields[name] = self.members[fields[name]]
        message = Message(
            id=self.log.next_id(),
            group=self.index,
            sequence=self._sequence[channel],
            start=self.log.now(),
            place=self.log.place(),
            **fields,
        )
        self.log.write(message)
        return message

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier that gives no Work: it has been waited for when it returns."""
        message = self._note("monitored_barrier", (), {})
        self.log.write(Wait(message.id, message.start, message.place))
        with unseen():
            self.real.monitored_barrier(timeout, wait_all_ranks)
        self.log.write(Done(message.id, self.log.now()))

    def __repr__(self) -> str:
        return f"<group of {name_ranks(list(self.members))}>"

    def name(self) -> str:
        """The real group's name for itself."""
        return self.real.name()

    def getBackendName(self) -> str:
        """As :meth:`name`; torch's C++ asks for it under this name."""
        return self.real.name()


def _backend_type(backend) -> dist.ProcessGroup.BackendType:
    return getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)


def _watched(method: str):
    def operation(self, *args, **kwargs):
        return self.watch(method, args, kwargs)

    operation.__name__ = method
    return operation


for _method in READINGS:
    if hasattr(dist.ProcessGroup, _method) and _method not in vars(WatchedGroup):
        setattr(WatchedGroup, _method, _watched(_method))


class WatchedWork(dist.Work):
    """The Work of a watched operation: notes when it is waited for.

    A collective's is kept until then, as torch keeps the real one; a send's or receive's is not, so that a Work which
    the learner drops fails as it does unwatched.
    """

    def __init__(self, real: dist.Work, message: Message, group: WatchedGroup):
        super().__init__()
        self._real, self._message, self._log = real, message, group.log
        self._is_noted = False
        if message.kind not in P2P:
            self._log.keep(message.id, self)

    def __del__(self):
        if self._message.kind in P2P and not self._is_noted:
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
            torch.autograd.Variable._execution_engine.queue_callback(self._note_wait_of_backward)
        return self._waiting(lambda: self._real.wait(timeout) if timeout != _NO_TIMEOUT else self._real.wait(), when)

    def _note_wait_of_backward(self) -> None:
        self._log.write(Wait(self._message.id, self._log.now(), self._message.place, "backward"))

    def _waiting(self, wait, when: str = "now"):
        if not self._is_noted:
            self._log.write(Wait(self._message.id, self._log.now(), self._log.place(), when))
        with unseen():
            result = wait()
        self._note_done()
        return result

    def _note_done(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            source = self._real._source_rank() if self._message.peer == ANY_SOURCE else None
            self._log.write(Done(self._message.id, self._log.now(), source))
            note_done(self._log)
        self._log.release(self._message.id)

    def get_future(self) -> torch.futures.Future:
        """The real future; inside a backward pass this rank waits for it at the end of the pass, as DDP does."""
        future = self._real.get_future()
        if torch._C._current_graph_task_id() != -1:
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self._waiting(self._real.wait, when="backward")
            )
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
        return self._real._source_rank()


def _in_fsdps_backward() -> bool:
    """Whether it is FSDP that calls, from a hook of the backward pass."""
    if torch._C._current_graph_task_id() == -1:
        return False
    frame = sys._getframe(2)
    while frame and not frame.f_globals.get("__name__", "").startswith("torch.distributed.fsdp."):
        frame = frame.f_back
    return frame is not None


class _WatchedFuture(torch.futures.Future):
    """A future whose wait is noted."""

    def __init__(self, real: torch.futures.Future, work: WatchedWork):
        super().__init__()
        self._work = work
        real.add_done_callback(self._finish)

    def _finish(self, real: torch.futures.Future) -> None:
        try:
            self.set_result(real.value())
        except RuntimeError as error:
            self.set_exception(error)

    def wait(self):
        """Waits for the operation, and notes that this rank does."""
        return self._work._waiting(super().wait)


def watch_groups(log: Log) -> None:
    """From now on every process group made in this process is watched."""
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def make_watched(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs):
        members = tuple(global_ranks_in_group) or tuple(range(group_size))
        index = log.new_group(str(group_name), members)
        log.write(MakeGroup(index, False, log.now(), log.place()))
        group, its_store = make(
            group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs
        )
        if group is not dist.GroupMember.NON_GROUP_MEMBER and not isinstance(group, WatchedGroup):
            group = _put_in_place(WatchedGroup(group, index, members, log))
        log.write(MakeGroup(index, True, log.now(), log.place()))
        return group, its_store

    c10d._new_process_group_helper = make_watched
    _note_calls_from_outside(log)


def _note_calls_from_outside(log: Log) -> None:
    """A collective on a group that the rank is not in does nothing but warn: the recording says so too."""
    is_outside = c10d._rank_not_in_group

    def note_if_outside(group) -> bool:
        outside = is_outside(group)
        if outside:
            operation = sys._getframe(1).f_code.co_name
            log.note(f"rank {dist.get_rank()} called {operation} on a group that it is not in: nothing happened there")
        return outside

    c10d._rank_not_in_group = note_if_outside


def _put_in_place(watched: WatchedGroup) -> WatchedGroup:
    """Has torch's tables name the watched group instead of the real one."""
    real, world = watched.real, c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag):
        if real in table:
            table[watched] = table.pop(real)
    for groups in world.tags_to_pg.values():
        groups[:] = [watched if group is real else group for group in groups]
    c10d._unregister_process_group(watched.group_name)
    c10d._register_process_group(watched.group_name, watched)
    return watched
