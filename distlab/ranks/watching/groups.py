"""Watches ordinary torch.distributed code: a process group and a Work that note what passes, and do what the real
ones do.

The watching group is put where torch makes groups, so that init_process_group, new_group, device meshes, DDP, FSDP,
DTensor and pipelining are all seen by the same means, and get_backend() still says gloo.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from distlab.events import ANY_SOURCE, P2P, Done, Fail, MakeGroup, Message, Wait
from distlab.ranks import torch_inside
from distlab.ranks.output import name_ranks
from distlab.ranks.watching.layout import Tensors, strides_of, tensors_of
from distlab.ranks.watching.log import Log
from distlab.ranks.watching.memory import note_issued
from distlab.ranks.watching.operations import OPERATIONS
from distlab.ranks.watching.uncompiled import uncompiled, with_uncompiled_methods
from distlab.ranks.watching.underway import UnderWay
from distlab.ranks.watching.works import WatchedWork, keep_ddps_work


@with_uncompiled_methods
class WatchedGroup(dist.ProcessGroup):
    """Passes every operation on to a real group, and writes it down first.

    ``members`` are ranks of the run. A limit of the group's below ``run_limit`` seconds, the run's own, was set by the
    learner: waits that end by it are no deadlocks.
    """

    def __init__(
        self,
        real: dist.ProcessGroup,
        index: int,
        members: tuple[int, ...],
        log: Log,
        under_way: UnderWay,
        run_limit: float,
    ):
        # C++ asks these of the wrapper, without calling Python. torch's stub lacks this constructor.
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]
        self.real, self.index, self.members, self.log = real, index, members, log
        self._under_way, self._run_limit = under_way, run_limit
        self._sequence: Counter = Counter()
        self._one_at_a_time = threading.Lock()
        self._backends = [*torch_inside.backends(real).values()]
        torch_inside.take_over(self, real)

    def watch(self, method: str, args: tuple, kwargs: dict):
        """Notes one operation and starts it on the real group.

        One thread at a time, so that operations are noted in the order in which the real group gets them.
        """
        with self._one_at_a_time:
            fields = self._read(method, args, kwargs)
            tensors = tensors_of(method, args, kwargs, fields.get("root") == self.members[self.real.rank()])
            message = self._note(fields, strides_of(method, fields["kind"], tensors))
            if len(self.members) > 1:
                self._under_way.begin(message, tensors)
            if self.log.is_on_main_thread:
                note_issued(self.log, args, kwargs)
            with self.log.unseen():
                work = getattr(self.real, method)(*args, **kwargs)
        return WatchedWork(work, message, self.members, self.log, self._under_way, self._limit(args))

    def tensors_under_way(self) -> list[Tensors]:
        """What the messages of this rank read and write that have been begun and not waited for, in any group."""
        return self._under_way.tensors()

    def _limit(self, options: tuple = ()) -> float:
        """The seconds after which a wait gives up, if the learner has set them; else 0."""
        set_for_it = [getattr(option, "timeout", None) for option in options]
        limits = [limit for limit in set_for_it if isinstance(limit, timedelta) and limit > timedelta(0)]
        limits = limits or [limit for limit in map(torch_inside.timeout_of, self._backends) if limit is not None]
        limit = min(limits, default=timedelta.max).total_seconds()
        return limit if limit < self._run_limit else 0.0

    def _read(self, method: str, args: tuple, kwargs: dict) -> dict:
        """The fields of one operation's Message, its peers and root as ranks of the run."""
        fields = OPERATIONS[method](self.real.size(), *args, **kwargs)
        if method in P2P and not 0 <= fields["peer"] < self.real.size():
            most = self.real.size() - 1
            raise ValueError(f"{method} expects a rank of the group, from 0 to {most}, got {fields['peer']}")
        if method in P2P and fields["peer"] == self.real.rank():
            mine = self.members[fields["peer"]]
            raise ValueError(f"{method} expects another rank, got this rank itself, {mine}: copy the tensor instead")
        for name in ("peer", "root"):
            if fields.get(name) not in (None, ANY_SOURCE):
                fields[name] = self.members[fields[name]]
        return fields

    def _note(self, fields: dict, strides: tuple[int, ...] = ()) -> Message:
        channel = (fields["kind"], fields.get("peer"), fields.get("tag")) if "tag" in fields else "collective"
        self._sequence[channel] += 1
        message = Message(
            id=self.log.next_id(),
            group=self.index,
            sequence=self._sequence[channel],
            start=self.log.now(),
            place=self.log.place(),
            strides=strides,
            **fields,
        )
        self.log.write(message)
        return message

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier that gives no Work: it has been waited for when it returns."""
        with self._one_at_a_time:
            message = self._note(OPERATIONS["monitored_barrier"](self.real.size()))
        limit = timeout.total_seconds() if timeout is not None else self._run_limit
        when = "now" if self.log.is_on_main_thread else "thread"
        limit = limit if limit < self._run_limit else 0.0
        self.log.write(Wait(message.id, message.start, message.place, when, limit))
        try:
            with self.log.unseen():
                self.real.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[attr-defined]  # not in torch's stub
        except BaseException:
            self.log.write(Fail(message.id, self.log.now()))
            raise
        self.log.write(Done(message.id, self.log.now()))

    def __repr__(self) -> str:
        return f"<group of {name_ranks(list(self.members))}>"

    def name(self) -> str:
        """The real group's name for itself."""
        return self.real.name()

    def getBackendName(self) -> str:
        """As :meth:`name`; torch's C++ asks for it under this name."""
        return self.real.name()


def _watched(method: str):
    def operation(self, *args, **kwargs):
        return self.watch(method, args, kwargs)

    operation.__name__ = method
    return uncompiled(operation)


# C++ calls a method of the wrapper only where it finds one of that name on the class: __getattr__ would not be asked.
for _method in OPERATIONS:
    if hasattr(dist.ProcessGroup, _method) and _method not in vars(WatchedGroup):
        setattr(WatchedGroup, _method, _watched(_method))


class _Worlds:
    """The worlds that this process makes, one after the other: run()'s, and what it makes after destroying that.

    torch numbers the ranks of each from 0, and begins anew with the names of groups.
    """

    def __init__(self, log: Log, rank: int):
        self._log, self._rank = log, rank
        self._index, self._number = 0, 0
        self._members: tuple[int, ...] = ()

    def begin_group(self, name: str, ranks: Sequence[int], place: int, size: int, store: dist.Store):
        """Notes a group that is going to be made; returns its number, and its members as ranks of the run.

        ``ranks`` are those of the current world, none for a new world, where this rank is number ``place`` of ``size``.
        """
        if ranks:
            members = tuple(self._members[rank] for rank in ranks)
            name = f"{name} of world {self._number}" if self._number > 1 else name
            return self._log.new_group(name, members, self._index), members
        self._number, self._members = self._meet(place, size, store) if self._index else (1, tuple(range(size)))
        self._index = self._log.new_group(f"world {self._number}" if self._number > 1 else "world", self._members)
        return self._index, self._members

    def _meet(self, place: int, size: int, store: dist.Store) -> tuple[int, tuple[int, ...]]:
        """A later world's number, and who is in it as ranks of the run: each says in the store what it knows."""
        store.set(f"distlab/{place}", f"{self._rank} {self._number}")
        known = [tuple(map(int, store.get(f"distlab/{other}").split())) for other in range(size)]
        return 1 + max(number for _, number in known), tuple(rank for rank, _ in known)


def watch_groups(log: Log, rank: int, run_limit: float) -> None:
    """From now on every process group made in this process, rank ``rank`` of the run, is watched."""
    worlds, under_way = _Worlds(log, rank), UnderWay(log)

    def watched(make):
        @functools.wraps(make)
        def make_watched(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs):
            given = group_size, group_rank, global_ranks_in_group, backend, store, group_name
            if str(backend) == "fake":  # torch's own stand-in, in which nobody is met
                return make(*given, *args, **kwargs)
            index, members = worlds.begin_group(str(group_name), global_ranks_in_group, group_rank, group_size, store)
            log.write(MakeGroup(index, False, log.now(), log.place()))
            group, its_store = make(*given, *args, **kwargs)
            if group is not dist.GroupMember.NON_GROUP_MEMBER and not isinstance(group, WatchedGroup):
                real, group = group, WatchedGroup(group, index, members, log, under_way, run_limit)
                torch_inside.put_in_place_of(real, group)
            log.write(MakeGroup(index, True, log.now(), log.place()))
            return group, its_store

        return uncompiled(make_watched)

    torch_inside.wrap_making_of_groups(watched)
    torch_inside.wrap_test_for_outsiders(functools.partial(_noting_outsiders, log))
    keep_ddps_work()


def _noting_outsiders(log: Log, is_outside):
    """A collective on a group that the rank is not in does nothing but warn: the recording says so too."""

    def note_if_outside(group) -> bool:
        outside = is_outside(group)
        if outside:
            operation = sys._getframe(1).f_code.co_name
            log.note(f"rank {dist.get_rank()} called {operation} on a group that it is not in: nothing happened there")
        return outside

    return uncompiled(note_if_outside)
