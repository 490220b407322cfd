"""Recording: the events of a run by rank, to count, to scale, to save and to replay on another machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from distlab.events import KINDS, Compute, Done, Drop, Event, Message, Span, Wait

_FORMAT = "distlab recording 3"
# Formats that are still read: how many fields events had.
_BEFORE: dict[str, dict[type, int]] = {
    "distlab recording 1": {Compute: 6, Message: 17, Wait: 4},
    "distlab recording 2": {Compute: 6},
}
_FIELDS = {kind: tuple(get_type_hints(kind).items()) for kind in KINDS.values()}

_Kind = TypeVar("_Kind", bound=Event)


class RecordingError(ValueError):
    """A file is not a recording, or a recording contradicts itself; the message says where."""


class Group(NamedTuple):
    """A process group: its name and the ranks of the run that are in it."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """What happened in a run: ``ranks[r]`` is rank r's history.

    Recorded by ``run``, written by hand or generated; the simulator does not care. ``groups`` is the world alone
    unless given. ``notes`` are things to know before reading it ("cut after 1,000,000 events"). ``as_if`` says what
    :meth:`scaled` did.
    """

    ranks: Sequence[Sequence[Event]]
    groups: Sequence[Group] = ()
    places: Sequence[str] = ("",)
    notes: tuple[str, ...] = ()
    as_if: str = ""

    def __post_init__(self):
        if not self.groups:
            object.__setattr__(self, "groups", (Group("world", tuple(range(len(self.ranks)))),))

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def events(self, kind: type[_Kind], rank: int | None = None) -> list[_Kind]:
        """The events of one kind, of one rank or of all, rank by rank."""
        ranks = self.ranks if rank is None else [self.ranks[rank]]
        return [event for history in ranks for event in history if type(event) is kind]

    def messages(self, rank: int | None = None, kind: str | None = None) -> list[Message]:
        """The messages and collectives issued by one rank or all; ``kind`` as in "all_reduce"."""
        return [m for m in self.events(Message, rank) if kind is None or m.kind == kind]

    def counts(self, rank: int) -> Counter[str]:
        """How many messages and collectives of each kind a rank issued."""
        return Counter(message.kind for message in self.messages(rank))

    def flops(self, rank: int) -> float:
        """FLOPs counted on a rank."""
        return sum(event.flops for event in self.events(Compute, rank))

    def scaled(self, flops: float = 1.0, bytes: float = 1.0) -> Recording:
        """The same run as if every operator did ``flops`` times the work and every message held ``bytes`` times the
        data.

        Bytes that operators read and write grow with the work. Raises ValueError for a factor that is not positive.
        """
        for name, factor in (("flops", flops), ("bytes", bytes)):
            if not factor > 0:
                raise ValueError(f"{name} must be a positive factor, not {factor!r}")
        ranks = [[_scale(event, flops, bytes) for event in history] for history in self.ranks]
        words = f"as if {flops:g} × the FLOPs, {bytes:g} × the bytes"
        return replace(self, ranks=ranks, as_if=f"{self.as_if}; {words}" if self.as_if else words)

    def save(self, path: str | Path) -> None:
        """Writes the recording as JSON."""
        content = {
            "format": _FORMAT,
            "groups": self.groups,
            "places": self.places,
            "notes": self.notes,
            "as_if": self.as_if,
            "ranks": [[[type(event).__name__, *event] for event in history] for history in self.ranks],
        }
        Path(path).write_text(json.dumps(content))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Reads what :meth:`save` wrote; raises RecordingError saying what is wrong with the file, and where."""
        try:
            content = json.loads(Path(path).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path} is not JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") not in (_FORMAT, *_BEFORE):
            raise RecordingError(f'{path} is not a recording: expected an object with "format": "{_FORMAT}"')
        try:
            groups = [Group(str(name), tuple(members)) for name, members in content["groups"]]
            num_fields = {kind: len(kind._fields) for kind in KINDS.values()} | _BEFORE.get(content["format"], {})
            ranks = [_read_history(rank, history, num_fields) for rank, history in enumerate(content["ranks"])]
            recording = cls(ranks, groups, content["places"], tuple(content["notes"]), content["as_if"])
            recording.validate()
        except RecordingError as error:
            raise RecordingError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{path} is a damaged recording: {type(error).__name__}: {error}") from None
        return recording

    def validate(self) -> None:
        """Raises RecordingError if an event names a group, rank, message or place that is not there."""
        for rank, history in enumerate(self.ranks):
            issued: set[int] = set()
            for number, event in enumerate(history):
                if wrong := self._contradiction(rank, event, issued):
                    raise RecordingError(f"rank {rank}, event {number} ({type(event).__name__}): {wrong}")

    def _contradiction(self, rank: int, event: Event, issued: set[int]) -> str:
        if isinstance(event, Wait | Done | Drop) and event.id not in issued:
            return f"no message {event.id} was issued before it"
        if not isinstance(event, Message):
            return ""
        if event.id in issued:
            return f"the message id {event.id} stands twice on this rank"
        issued.add(event.id)
        if not 0 <= event.group < len(self.groups):
            return f"there is no group {event.group}"
        if rank not in self.groups[event.group].members:
            return f"rank {rank} is not in group {self.groups[event.group].name}"
        if event.kind == "send" and event.peer not in self.groups[event.group].members:
            return f"it sends to {event.peer}, which is not in group {self.groups[event.group].name}"
        return ""


def _scale(event: Event, flops: float, bytes: float) -> Event:
    if isinstance(event, Compute):
        products = tuple((work * flops, size * flops, count) for work, size, count in event.products)
        return event._replace(flops=event.flops * flops, bytes=event.bytes * flops, products=products)
    if isinstance(event, Span) and event.flops is not None:
        return event._replace(flops=event.flops * flops)
    if isinstance(event, Message):
        return event._replace(
            elements=round(event.elements * bytes),
            bytes=round(event.bytes * bytes),
            parts=tuple(round(part * bytes) for part in event.parts),
            expects=tuple(round(room * bytes) for room in event.expects),
        )
    return event


def _read_history(rank: int, history: Iterable, num_fields: Mapping[type, int]) -> list[Event]:
    return [_read_event(f"rank {rank}, event {number}", entry, num_fields) for number, entry in enumerate(history)]


def _read_event(where: str, entry, num_fields: Mapping[type, int]) -> Event:
    if not isinstance(entry, list) or not entry or entry[0] not in KINDS:
        raise RecordingError(f"{where}: expected [kind, …] with a kind of {', '.join(KINDS)}, got {str(entry)[:60]}")
    kind = KINDS[entry[0]]
    fields = [_as_tuples(value) for value in entry[1:]]
    if len(fields) != num_fields[kind]:
        raise RecordingError(f"{where}: {entry[0]} has {num_fields[kind]} fields, got {len(fields)}")
    for (name, expected), value in zip(_FIELDS[kind], fields):
        if not _fits(value, expected):
            raise RecordingError(f"{where}: {name} must be {getattr(expected, '__name__', expected)}, got {value!r}")
    since = [kind._field_defaults[name] for name in kind._fields[len(fields) :]]  # what that format did not have
    return kind._make([*fields, *since])


def _as_tuples(value):
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _fits(value, expected) -> bool:
    """Whether a value from JSON is of the type that an event's field is annotated with."""
    if get_origin(expected) is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = get_args(expected)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if get_origin(expected) is UnionType:
        return any(_fits(value, option) for option in get_args(expected))
    if isinstance(value, bool):
        return expected is bool
    return isinstance(value, int | float if expected is float else expected)


class History:
    """Writes one rank's events by hand or by a generator: ``History().compute(1e9).send(1, 4096)``."""

    def __init__(self):
        self.events: list[Event] = []
        self._next = 0

    def compute(self, flops: float, name: str = "", bytes: float = 0, operators: int = 0) -> History:
        """Adds work as of one operator, in a span called ``name`` if it is given.

        On a machine it takes the larger of what its FLOPs and its bytes take, and its overhead ``operators`` times.
        """
        products = ((flops, bytes, 1),) if flops and bytes else ()
        work = Compute(flops, 0 if flops else bytes, operators, products=products)
        self.events += [Span(name), work, Span("")] if name else [work]
        return self

    def send(self, peer: int, bytes: int, **fields) -> History:
        """Adds a blocking send of ``bytes`` to a rank."""
        return self.wait(self.issue("send", bytes, peer=peer, **fields))

    def recv(self, peer: int, bytes: int, **fields) -> History:
        """Adds a blocking receive of ``bytes`` from a rank."""
        return self.wait(self.issue("recv", bytes, peer=peer, **fields))

    def collective(self, kind: str, bytes: int, **fields) -> History:
        """Adds a blocking collective of size ``bytes``."""
        return self.wait(self.issue(kind, bytes, **fields))

    def issue(self, kind: str, bytes: int, **fields) -> int:
        """Adds a message that is not waited for yet; returns its id for :meth:`wait`."""
        self._next += 1
        self.events.append(Message(self._next, kind, elements=bytes // 4, bytes=bytes, is_async=True, **fields))
        return self._next

    def wait(self, id: int) -> History:
        """Adds the wait for the message ``id``."""
        self.events += [Wait(id), Done(id)]
        return self
