"""The memory of messages that are under way on this rank, and who uses it before the wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from distlab.events import P2P, Message, Touch
from distlab.ranks.torch_inside import is_mutable, name_of_operator, version_of
from distlab.ranks.watching.layout import Tensors
from distlab.ranks.watching.log import Log

_WRITTEN_UNSEEN = {"all_reduce", "broadcast", "reduce", "send", "recv"}
_LOOK_AT_SHAPES_ONLY = ("new_", "is_same_size")


class _Memory(NamedTuple):
    """What one message reads and writes, as spans of addresses; the tensors that are all of their storage, with their
    versions: whatever else is written into a storage counts as a new version of all its tensors."""

    read: list[tuple[int, int]]
    written: list[tuple[int, int]]
    whole: list[tuple[torch.Tensor, int]]
    tensors: Tensors  # kept, so that no other tensor takes their memory


class UnderWay:
    """Messages between their issue and their wait. What uses their memory meanwhile is written into the log, once for
    each message."""

    def __init__(self, log: Log):
        self._log = log
        self._messages: dict[int, _Memory] = {}

    def begin(self, message: Message, tensors: Tensors) -> None:
        """Follows a message from here on; it may be the one that uses another's memory too early.

        What it writes counts for autograd as written in place, which the backend doesn't say.
        """
        mine = list(map(_span, tensors.read)), list(map(_span, tensors.written))
        if self._messages:
            self._look(*mine, message.place)
        changed = [tensor for tensor in tensors.written if not tensor.is_inference()]
        if changed:
            torch.autograd.graph.increment_version(changed)
        if message.is_async or message.kind in P2P:
            whole = [(tensor, version_of(tensor)) for tensor in _left_alone(message.kind, tensors) if _is_whole(tensor)]
            self._messages[message.id] = _Memory(*mine, whole, tensors)
            self._follow_operators()

    def end(self, id: int) -> None:
        """The message has been waited for: whoever wrote into its memory meanwhile was too early."""
        memory = self._messages.pop(id, None)
        if memory is None:
            return
        self._follow_operators()
        if any(version_of(tensor) != version for tensor, version in memory.whole):
            self._log.write(Touch(id, "written", self._log.now()))

    def tensors(self) -> list[Tensors]:
        """What the messages read and write that are under way now."""
        return [memory.tensors for memory in self._messages.values()]

    def forget(self, id: int) -> None:
        """The message is followed no more: its Work was dropped, or it is a future that says when it is over."""
        self._messages.pop(id, None)
        self._follow_operators()

    def _follow_operators(self) -> None:
        """Has operators looked at only while there is something to look for."""
        if self._log.counter is not None and self._log.is_on_main_thread:
            self._log.counter.before_operator = self._look_at_operator if self._messages else None

    def _look_at_operator(self, func, args: Iterable, kwargs: dict) -> None:
        if _looks_at_shapes_only(name_of_operator(func)):
            return
        args = list(args)
        written = [kwargs["out"]] if "out" in kwargs else args[:1] if is_mutable(func) else []
        read = args[1:] if written and "out" not in kwargs else args
        self._look(list(map(_span, _tensors_in(read))), list(map(_span, _tensors_in(written))), None)

    def _look(self, read: list[tuple[int, int]], written: list[tuple[int, int]], place: int | None) -> None:
        for id, memory in [*self._messages.items()]:
            if _meet(written, memory.read) or _meet(written, memory.written):
                how = "written"
            elif _meet(read, memory.written):
                how = "read"
            else:
                continue
            place = self._log.place() if place is None else place
            self.forget(id)
            self._log.write(Touch(id, how, self._log.now(), place))


def _looks_at_shapes_only(name: str) -> bool:
    name = name.partition("::")[2]
    return name.startswith(_LOOK_AT_SHAPES_ONLY) or name.endswith("_like")


def _tensors_in(values: Iterable) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor that lies in a row; of one that does not, which may interleave with others, none."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return 0, 0
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def _left_alone(kind: str, tensors: Tensors) -> Iterable[torch.Tensor]:
    """The tensors whose versions only the learner changes: into others the backend copies what came, by operators."""
    if kind in _WRITTEN_UNSEEN and len(tensors.written) <= 1:
        return {*tensors.read, *tensors.written}
    return {*tensors.read} - {*tensors.written}


def _is_whole(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_inference()
        and tensor.nbytes == tensor.untyped_storage().nbytes()
    )


def _meet(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> bool:
    return any(begin < other_end and other < end for begin, end in mine for other, other_end in theirs)
