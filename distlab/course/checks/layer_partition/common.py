"""What the checks of lab 06 share: the stages of a small model, its batch, and the messages that cross the cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from torch import nn

from distlab.course.kit.case import Job, listed
from distlab.course.kit.outcome import Outcome
from distlab.events import ANY_SOURCE, P2P

Pair = tuple[int, int]  # who sends, and to whom
ANY = "from whom it receives"
_SHOWN = {"what was called": ("collective",), "more messages than asked for": ("messages",)}


def stage_of(job: Job, layers: Sequence[int]) -> nn.Sequential:
    """Some layers of the case's model, a product and tanh each; the same for the same job, on every rank."""
    made: list[nn.Module] = []
    for number in layers:
        layer = nn.utils.skip_init(nn.Linear, *job["widths"][number : number + 2], dtype=job.dtype)
        for which, parameter in enumerate(layer.parameters(), 100 + 2 * number):
            parameter.data = job.random(*parameter.shape, of=which) / 2
        made += [layer, nn.Tanh()]
    return nn.Sequential(*made)


def shape_at(job: Job, cut: int) -> tuple[int, ...]:
    """The shape of the batch (cut 0) or of an activation, one stage a rank."""
    return job["rows"], *job["axes"], job["widths"][cut]


def sizes_of(job: Job) -> list[int]:
    """The bytes of the activation at each cut, one stage a rank."""
    return [job.dtype.itemsize * prod(shape_at(job, cut)) for cut in range(1, job.ranks)]


def in_words(pairs: Sequence[Pair]) -> str:
    """ "0 → 1 and 1 → 2"."""
    return listed([f"{source} → {target}" for source, target in pairs])


def misdirected(outcome: Outcome, want: Mapping[Pair, list[int]], kinds: Sequence[str] = ("send", "recv")) -> Iterator:
    """What is wrong with the messages of the calls: ``want`` has the bytes of each from one rank to another.

    ``kinds`` are those that the calls issue.
    """
    ranks = range(len(outcome.values))
    for rank in ranks:
        for kind in (m.kind for m in outcome.messages(rank, "call") if m.kind not in P2P):
            yield "what was called", f"rank {rank}: expected send and recv only, got {kind}"
        if any(m.kind == "recv" and m.peer in (None, ANY_SOURCE) for m in outcome.messages(rank, "call")):
            yield ANY, f"rank {rank}: expected a receive from a rank that is named, got one from any"
    for pair in ((source, target) for source in ranks for target in ranks):
        for kind in kinds:
            (rank, peer), verb = (pair, "sends to") if kind == "send" else (pair[::-1], "receives from")
            sizes = [m.bytes for m in outcome.messages(rank, "call") if (m.kind, m.partner) == (kind, peer)]
            if sizes != (wanted := want.get(pair, [])):
                what = "more messages than asked for" if len(sizes) > len(wanted) else "the messages"
                yield what, f"what rank {rank} {verb} rank {peer}: expected {_listed(wanted)}, got {_listed(sizes)}"


def shown_by(judge: Callable[[Job, Outcome], Iterator]) -> Callable[[Job, Outcome], tuple[str, ...]]:
    """What the first complaint of :func:`misdirected` shows by itself, for an Experiment."""
    return lambda job, outcome: _SHOWN.get(next(judge(job, outcome))[0], ())


def _listed(sizes: Sequence[int]) -> str:
    if not sizes:
        return "none"
    return f"{len(sizes)} ({', '.join(f'{size:,}' for size in sizes[:6])}{', …' if sizes[6:] else ''} bytes)"
