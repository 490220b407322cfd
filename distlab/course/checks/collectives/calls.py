"""What a learner's function sends and receives, noted on each rank as it happens: so that a hang, too, can be named."""

from __future__ import annotations

import json
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import RankFailed
from distlab.ranks.watching.spans import span

_MOST = 500  # messages of one rank in one check's run: several times what any exercise takes
_HIDDEN = ("torch.", "distlab.")


class Call(NamedTuple):
    """A send or receive as it was called: ``peer`` is None for any rank, ``line`` the learner's code."""

    case: int
    kind: str
    peer: int | None
    tag: int
    line: str


class Endless(RuntimeError):
    """A rank has sent and received more than any exercise needs."""


# --- on a rank -----------------------------------------------------------------------------------

_kept: list[dist.Work] = []  # until the rank ends
_case = 0


@contextmanager
def numbered(case: int) -> Iterator[None]:
    """On a rank: marks what follows as case ``case``, for the calls and in the recording."""
    global _case
    _case = case
    with span("case", case):
        yield


def noted(folder: str, driver, *args):
    """On a rank: does ``driver(*args)`` and notes each send and receive in a file of ``folder``.

    Also keeps every Work: gloo loses a message whose Work is dropped before it was waited for, and others then hang.
    Kept, it arrives, and the recording says that nobody waited.
    """
    with (Path(folder) / str(dist.get_rank())).open("a", buffering=1) as file, _watching(file):
        return driver(*args)


@contextmanager
def _watching(file) -> Iterator[None]:
    real = {name: getattr(distributed_c10d, name) for name in ("isend", "irecv")}
    peers = {"isend": "dst", "irecv": "src"}
    count = 0

    def watched(name: str):
        def call(tensor, *args, **kwargs):
            nonlocal count
            count += 1
            if count > _MOST:
                raise Endless(f"more than {_MOST} messages on one rank")
            peer = args[0] if args else kwargs.get(peers[name], kwargs.get(f"group_{peers[name]}"))
            tag = args[2] if len(args) > 2 else kwargs.get("tag", 0)
            line = _learners_line()
            file.write(json.dumps(Call(_case, name[1:], peer, tag, line)) + "\n")
            work = real[name](tensor, *args, **kwargs)
            _kept.append(work)
            if name == "isend" and isinstance(work, dist.Work):
                _look_at_the_wait(work, tensor, lambda: file.write(json.dumps([line]) + "\n"))
            return work

        call.__name__ = name
        return call

    for name in real:
        replaced = watched(name)
        setattr(dist, name, replaced)
        setattr(distributed_c10d, name, replaced)  # send and recv call these
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
            setattr(distributed_c10d, name, function)


def _look_at_the_wait(work: dist.Work, tensor: torch.Tensor, note) -> None:
    """Has ``note`` called if the tensor is no longer what was sent when the send is waited for."""
    sent, wait = _content(tensor), work.wait

    def waited(*args, **kwargs):
        if _content(tensor) != sent:
            note()
        return wait(*args, **kwargs)

    work.wait = waited


def _content(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _learners_line() -> str:
    frame = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").startswith(_HIDDEN):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""


# --- what it means -------------------------------------------------------------------------------

CALLS = (
    Misconception("itself", "Rank {rank} {does} itself: work out again which rank is at the other end."),
    Misconception(
        "tags", "The tags differ: rank {sender} sends with tag {sent}, and rank {rank} receives with tag {tag}."
    ),
    Misconception(
        "crossed", "Rank {rank} receives from rank {peer}, but it is rank {sender} that sends to rank {rank}."
    ),
    Misconception("endless", "The messages never end: what is to change at each turn of your loop, and end it?"),
    Misconception(
        "written", "A tensor was written to while its isend was under way: wait() for the isend before you change it."
    ),
    Misconception(
        "room",
        "What arrives is {sent}, and the room for it is {room}: torch.empty_like(…) takes over the dtype, torch.empty "
        "does not.",
    ),
)
UNWAITED = Misconception("unwaited", "A rank went on while its {kind} was under way: wait() for every {kind}.")

_VERDICTS = {
    "send-first": ("each to send to the next", "each wait to send to the other"),
    "receive-first": ("each to receive from the next", "each wait to receive from the other"),
    "unwaited": ("before its isend", "before its irecv"),
}
_DTYPES = re.compile(r"rank (\d+) sends (\w+)\[.*\] to rank (\d+), which receives (\w+)\[.*: the dtypes differ")
_OUTSIDE = re.compile(r"(send|recv) expects a rank of the group, from 0 to (\d+), got (-?\d+)")
_DOES = {"send": "sends to", "recv": "receives from"}
_SLIPS = {"NameError", "UnboundLocalError", "AttributeError", "TypeError", "SyntaxError"}
_SIZES = re.compile(r"rank (\d+) sends .* to rank (\d+), which .*: the receive is")


class Calls:
    """The calls of a run by rank, finished or not."""

    def __init__(self, folder: str, ranks: int):
        self.by_rank: list[list[Call]] = [[] for _ in range(ranks)]
        self.written: list[tuple[int, str]] = []
        for rank in range(ranks):
            path = Path(folder) / str(rank)
            for entry in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
                if len(entry) == 1:
                    self.written.append((rank, entry[0]))
                else:
                    self.by_rank[rank].append(Call(*entry))

    def open(self, kind: str) -> list[tuple[int, Call]]:
        """Sends or receives, with their ranks, that found no other side within their case; of the first such case."""
        channels: dict[tuple, dict[str, list]] = defaultdict(lambda: {"send": [], "recv": []})
        for rank, calls in enumerate(self.by_rank):
            for call in calls:
                ends = (rank, call.peer) if call.kind == "send" else (call.peer, rank)
                channels[call.case, *ends, call.tag][call.kind].append((rank, call))
        apart = {case: both for (case, *_), both in channels.items() if len(both["send"]) != len(both["recv"])}
        other = "recv" if kind == "send" else "send"
        return [
            one
            for (case, *_), both in channels.items()
            if case == min(apart, default=0)
            for one in both[kind][len(both[other]) :]
        ]

    def senders(self) -> list[int]:
        """The ranks that have sent anything."""
        return [rank for rank, calls in enumerate(self.by_rank) if any(call.kind == "send" for call in calls)]

    def last_receive(self, rank: int) -> str:
        """The line of a rank's last receive."""
        return next((call.line for call in reversed(self.by_rank[rank]) if call.kind == "recv"), "")


def is_slip(failed: RankFailed) -> bool:
    """Whether a rank raised an error of the kind that says it all: a name misspelt, a method that is not there."""
    return failed.error.failures[failed.error.rank].type in _SLIPS


def explain(failed: RankFailed, calls: Calls, ids: set[str]) -> Wrong:
    """Names what made a run fail, by the misconceptions ``ids`` alone; returns ``failed`` where none explains it."""
    found = _raised(failed) or _unlike(failed, calls) or _apart(failed, calls) or _verdict(failed)
    return found if found and set(found.believed) <= ids else failed


def _raised(failed: RankFailed) -> Wrong | None:
    cause, rank = failed.error.failures[failed.error.rank], failed.error.rank
    if cause.type == "Endless":
        return failed.because("endless")
    if "this rank itself" in cause.message or "same as the rank of the current process" in cause.message:
        does = _DOES["recv" if cause.message.startswith(("recv", "Invalid source")) else "send"]
        return failed.because("itself", rank=rank, does=does)
    if match := _OUTSIDE.search(cause.message):
        return failed.because("outside", rank=rank, does=_DOES[match[1]], peer=match[3], ranks=int(match[2]) + 1)
    return None


def _unlike(failed: RankFailed, calls: Calls) -> Wrong | None:
    """A receive that does not fit its send: it is the receive's line that helps."""
    verdict = failed.error.verdict
    if match := _DTYPES.search(verdict):
        _, sent, receiver, room = match.groups()
        return Wrong(failed.case, f"{verdict}\n  {calls.last_receive(int(receiver))}", ("room",), sent=sent, room=room)
    if match := _SIZES.search(verdict):
        failed.detail = f"{verdict}\n  {calls.last_receive(int(match[2]))}"
    return None


def _apart(failed: RankFailed, calls: Calls) -> Wrong | None:
    """A rank that waits to receive, while what is sent to it has another tag, or comes from another rank."""
    if failed.error.failures[failed.error.rank].kind == "raised":
        return None
    sends = calls.open("send")
    for rank, receive in calls.open("recv"):
        to_it = sorted((call.tag, sender, call.line) for sender, call in sends if call.peer == rank)
        for tag, sender, line in to_it:
            detail = f"rank {rank} waits in:  {receive.line}\n  rank {sender} sends by:  {line}"
            if sender == receive.peer:
                return Wrong(failed.case, detail, ("tags",), rank=rank, sender=sender, sent=tag, tag=receive.tag)
            if receive.peer is not None:
                return Wrong(failed.case, detail, ("crossed",), rank=rank, peer=receive.peer, sender=sender)
    return None


def _verdict(failed: RankFailed) -> Wrong | None:
    verdict = failed.error.verdict
    named = [id for id, words in _VERDICTS.items() if any(word in verdict for word in words)]
    return failed.because(*named, kind="irecv" if "its irecv" in verdict else "isend") if named else None
