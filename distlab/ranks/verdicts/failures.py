"""What happened to a rank that did not finish, in words, and whose fault it was."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field

from distlab.ranks.cells import Frame
from distlab.ranks.output import name_ranks
from distlab.ranks.verdicts.hints import hint_for

_VICTIM = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|recvValue failed|sendBytes failed"
    r"|Timed out waiting|monitoredBarrier|Socket closed|NCCL communicator was aborted"
)

_BACKENDS = re.compile(r"ProcessGroup(Gloo|NCCL)|gloo/")

_SIGNALS = {
    "SIGKILL": "killed from outside, likely out of memory",
    "SIGSEGV": "a crash in native code",
    "SIGABRT": "native code gave up",
    "SIGBUS": "shared memory ran out",
    "SIGFPE": "an impossible integer operation in native code",
    "SIGTERM": "asked to end from outside",
}


@dataclass(frozen=True)
class Failure:
    """Why one rank did not finish.

    ``kind`` is "raised" (an exception, sys.exit or os._exit: ``type`` and ``message`` say which), "died" (the process
    ended without a word), "called" (an operation that does not fit the others') or "stopped" (it stood at ``frames``
    when the run was ended). ``frames`` are the learner's lines, innermost last; ``function`` is where it stood inside
    them, a torch.distributed operation for instance. ``raised_at`` is a library's line that raised without a message;
    ``functions`` are the texts of the learner's functions that were running, for the hint.
    """

    kind: str
    type: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()
    function: str = ""
    traceback: str = ""
    raised_at: Frame | None = None
    functions: tuple[str, ...] = ()
    when: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_victim(self) -> bool:
        """Whether it failed only because another rank went away or the run was ended."""
        return self.kind == "stopped" or (self.kind == "raised" and bool(_VICTIM.search(self.message)))

    @property
    def is_backends(self) -> bool:
        """Whether it is the backend that raised, which sees one rank's arguments and says little of them."""
        return self.kind == "raised" and bool(_BACKENDS.search(self.message))

    @property
    def place(self) -> str:
        """The learner's innermost line: " at cell In[3], line 2", or nothing when no line of theirs was running."""
        return f" at {self.frames[-1].place}" if self.frames else ""

    @property
    def hint(self) -> str:
        """What a message known to puzzle people means, or nothing."""
        return hint_for(self)

    def __str__(self) -> str:
        return f"{_what_happened(self)}{self.place}"


def _what_happened(failure: Failure) -> str:
    if failure.kind == "died":
        return failure.message
    if failure.kind == "called":
        return f"called {failure.function}"
    if failure.kind == "stopped":
        return (
            f"waits in {failure.function}"
            if failure.function
            else "is still busy"
            if failure.frames
            else "is busy in native code"
        )
    if failure.is_victim:
        return f"lost its connection in {failure.function or 'a message'}"
    if failure.type == "SystemExit":
        return f"called sys.exit({failure.message}) and so left without finishing"
    if failure.type == "os._exit":
        return f"called os._exit({failure.message}) and so left without finishing"
    if not failure.message and failure.raised_at:
        return f"raised {failure.type} ({failure.raised_at.place}: {failure.raised_at.code})"
    return f"raised {failure.type}: {failure.message}".rstrip(": ")


def death(status: int, frames: tuple[Frame, ...] = (), last_words: str = "") -> Failure:
    """Describes a process that ended without saying so; a negative ``status`` is the signal that ended it."""
    if status < 0:
        name = signal.Signals(-status).name
        message = f"died of {name} ({_SIGNALS.get(name, 'a signal')})"
    else:
        message = f"ended with exit code {status} without finishing"
    return Failure("died", message=f"{message}{f': {last_words}' if last_words else ''}", frames=frames)


def verdict(failures: dict[int, Failure], returned: list[int], reason: str, finding: str = "") -> tuple[str, int]:
    """Says in a sentence why the run failed, and names the rank to look at first.

    ``reason`` says why the run was ended although ranks still ran: the time limit, for instance; "" if they were not
    stopped. ``finding`` is what the events show. In order of blame: an exception, a finding, a death, the reason.
    """
    causes = sorted((f.when, rank) for rank, f in failures.items() if not f.is_victim)
    raised = [rank for _, rank in causes if failures[rank].kind == "raised"]
    if raised:
        return f"rank {raised[0]} {failures[raised[0]]}", raised[0]
    if finding:
        return finding, causes[0][1] if causes else min(failures, default=0)
    if causes:
        return f"rank {causes[0][1]} {failures[causes[0][1]]}", causes[0][1]
    waiting = _grouped(failures)
    if reason:
        finished = f"; {name_ranks(returned)} returned" if returned else ""
        return f"{reason}: {waiting}{finished}", min(failures)
    if returned:
        return f"{name_ranks(returned)} returned while others still needed it: {waiting}", min(failures)
    return waiting, min(failures)


def _grouped(failures: dict[int, Failure]) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        ranks_of.setdefault(str(failure), []).append(rank)
    return "; ".join(
        f"{name_ranks(ranks)} {_plural(text) if len(ranks) > 1 else text}" for text, ranks in ranks_of.items()
    )


def _plural(text: str) -> str:
    return re.sub("^waits ", "wait ", re.sub("^is ", "are ", re.sub("^lost its ", "lost their ", text)))


def report(failures: dict[int, Failure], first: int) -> str:
    """Lays out all that is known, the cause with its lines first and one line for every other rank."""
    cause = failures[first]
    lines = [f"rank {first}:" if cause.kind == "raised" else f"rank {first} {_what_happened(cause)}:"]
    lines += [f"  {frame}" for frame in cause.frames[-12:]]
    lines += [f"  {cause.raised_at}"] if cause.raised_at else []
    if cause.kind == "raised" and not cause.is_victim and cause.type != "os._exit":
        lines.append(f"  {cause.type}: {cause.message}".rstrip(": "))
    if cause.hint:
        lines.append(f"  What this means: {cause.hint}")
    others = {rank: failure for rank, failure in failures.items() if rank != first}
    return "\n".join([*lines, *one_line_each(others)])


def one_line_each(failures: dict[int, Failure]) -> list[str]:
    """What happened to each rank, with the learner's line that was running."""
    codes = {rank: failure.frames[-1].code for rank, failure in failures.items() if failure.frames}
    return [
        f"rank {rank} {failure}{f':  {codes[rank]}' if codes.get(rank) else ''}"
        for rank, failure in sorted(failures.items())
    ]
