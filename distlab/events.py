"""What can happen on a rank. A rank's history is a list of these, in the order in which they happened there.

Times are seconds of this computer's clock since the run began; ``place`` is an index into the recording's places. In a
recording that was written by hand both may be left out.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

P2P = frozenset({"send", "recv"})
ANY_SOURCE = -1


class Compute(NamedTuple):
    """Operators that ran between two other events, added up.

    ``flops`` counts operators that have a formula, matrix products above all, ``bytes`` what the others touched,
    ``operators`` how many there were. ``products`` are those of the first kind, by size: (FLOPs, bytes of operands and
    result, how many of them); none where their bytes are not known.
    """

    flops: float = 0.0
    bytes: float = 0.0
    operators: int = 0
    start: float = 0.0
    end: float = 0.0
    place: int = 0
    products: tuple[tuple[float, float, int], ...] = ()


class Message(NamedTuple):
    """A collective, a send or a receive, at the moment when it is issued.

    ``id`` is unique on its rank. ``group`` is an index into the recording's groups. ``sequence`` counts the group's
    collectives on this rank from 1, and for ``send`` and ``recv`` those between the same two ranks with the same tag.
    ``shape`` and ``dtype`` are those of what this rank puts in; ``elements`` and ``bytes`` are the size S by which a
    collective's cost is computed: the whole array, so for all-gather what comes out and for reduce-scatter what goes
    in. ``peer`` and ``root`` are ranks of the whole run, or None; ``parts`` are the elements that go to each member
    where the sizes may differ (all-to-all, scatter, gather), else (), and ``expects`` those that this rank has made
    room for from each. ``is_async`` says of a collective that the learner got a Work to
    wait for. ``strides`` are those of what a backend takes as it lies in memory, where its elements are not in a row.
    """

    id: int
    kind: str
    group: int = 0
    sequence: int = 1
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    elements: int = 0
    bytes: int = 0
    peer: int | None = None
    root: int | None = None
    tag: int = 0
    reduce_op: str = ""
    parts: tuple[int, ...] = ()
    expects: tuple[int, ...] = ()
    is_async: bool = False
    start: float = 0.0
    place: int = 0
    strides: tuple[int, ...] = ()

    @property
    def partner(self) -> int:
        """The peer of a send or receive; ANY_SOURCE where it names none."""
        return ANY_SOURCE if self.peer is None else self.peer


class Wait(NamedTuple):
    """The rank begins to wait for the message ``id``.

    ``when`` is "now", or "backward" where it waits at the end of the backward pass (DDP by a hook, FSDP for its
    reduce-scatters). FSDP has a GPU's stream of its own wait for those as soon as they are issued, which a CPU can only
    do itself: "stream" is that wait, which replay passes over, and "backward" follows it without a Done. "thread" is
    the wait of another thread than the rank's main one, and keeps only that thread. ``limit`` are the seconds after
    which the wait gives up by itself, 0 if it outlasts the run.
    """

    id: int
    start: float = 0.0
    place: int = 0
    when: str = "now"
    limit: float = 0.0


class Done(NamedTuple):
    """The wait for the message ``id`` is over; ``source`` is the rank that had sent it, where any might have."""

    id: int
    end: float = 0.0
    source: int | None = None


class Fail(NamedTuple):
    """The wait for the message ``id`` ended by an error, which the learner may have caught."""

    id: int
    end: float = 0.0


class Drop(NamedTuple):
    """The Work of the send or receive ``id`` was thrown away before anybody waited for it: the message may be lost."""

    id: int
    time: float = 0.0


class Touch(NamedTuple):
    """The rank used the memory of the message ``id`` before it had waited for it.

    ``how`` is "read" (what it receives) or "written" (what it sends or receives). The line is ``place``, unless only
    the wait showed that somebody had written since the message was issued: then it is 0.
    """

    id: int
    how: str
    time: float = 0.0
    place: int = 0


class Span(NamedTuple):
    """A stretch that the learner named begins (``name``) or ends (``name`` is "").

    ``flops`` replaces what the operators in it count, if it is not None.
    """

    name: str
    flops: float | None = None
    time: float = 0.0
    place: int = 0


class Memory(NamedTuple):
    """Bytes held at one moment, by kind, each storage once; ``distlab.ranks.watching.memory`` says what counts as what.

    ``allocator`` is what the device's own allocator has given out at that moment, 0 where there is none to ask (CPU).
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    buffers: int = 0
    other: int = 0
    allocator: int = 0
    time: float = 0.0

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers + self.other


class MakeGroup(NamedTuple):
    """The rank begins to make a group (``is_made`` False), or has made it."""

    group: int
    is_made: bool
    time: float = 0.0
    place: int = 0


class Exit(NamedTuple):
    """The rank's function returned ("returned") or raised ("raised")."""

    how: str
    time: float = 0.0


Event = Compute | Message | Wait | Done | Fail | Drop | Touch | Span | Memory | MakeGroup | Exit
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
