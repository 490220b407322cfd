"""Operation: a send with its receive, or a collective with its members, as replay meets it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter

from distlab.events import Message

# One rank's part in an operation: the rank, its message, the span it was issued in, and how many messages the rank has
# issued with it. A plain tuple, for there is one to every message.
Entry = tuple[int, Message, str, int]

# A stretch of a rank's time: start and end in seconds, the span it is in, and the operation that it waits for or has on
# its links, None where it computes.
Row = tuple[float, float, str, "Operation | None"]

# A rank's rows one after the other, items in one flat list: replay has no time to make a tuple of each.
Lane = list


def rows(lane: Lane) -> Iterator[Row]:
    """The rows of a lane."""
    items = iter(lane)
    return zip(items, items, items, items)


class Operation:
    """Says who takes part and what it costs; once all have issued it, when it runs.

    ``kind`` is "send" for a send with its receive, or the collective's. ``entries`` are its parts, in order of ranks;
    of a send and its receive, the send first. ``bytes`` are the sender's, or the most that a member gave. It takes the
    clocks of ``ranks`` (source and target, or all members) for the ``classes`` of link that it uses, for ``seconds``.
    A receive of any source has ANY_SOURCE for the source until it is known. ``missing`` counts who has yet to issue it.

    ``turn`` decides which of two that were matched at the same moment comes first: their places in histories, the
    sender's and then the receiver's, of a collective the first member's and then the last one's. How ranks are numbered
    does not. ``start`` and ``end`` are modelled seconds. Until it has its place on the links, ``end`` is −1 and
    ``start`` is when ``last`` has issued it; then it starts there, or later, when the operation ``after`` leaves a link
    that it needs.
    """

    __slots__ = (
        "kind",
        "entries",
        "bytes",
        "ranks",
        "missing",
        "classes",
        "seconds",
        "start",
        "end",
        "last",
        "after",
        "turn",
    )

    classes: tuple[int, ...]
    seconds: float
    turn: tuple

    def __init__(self, kind: str, entries: list[Entry], ranks: tuple[int, ...], missing: int):
        self.kind = kind
        self.entries = entries
        self.bytes = 0
        self.ranks = ranks
        self.missing = missing
        self.start, self.end, self.last = -1.0, -1.0, -1
        self.after: Operation | None = None

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send with its receive."""
        return self.kind == "send"

    def message(self, rank: int) -> Message:
        """What a rank put in."""
        if self.is_p2p:
            return self.entries[0 if self.ranks[0] == rank else -1][1]
        return self.entries[bisect_left(self.entries, rank, key=itemgetter(0))][1]
