"""What the checks of lab 06 share: small stages, the whole model in one process, and what crosses a cut."""

from __future__ import annotations

import torch
from torch import nn

from distlab.course.exercise import Wrong
from distlab.course.kit.case import listed, with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed
from distlab.events import Message
from distlab.recording import Recording

__all__ = [
    "borders",
    "crossed",
    "given",
    "listed",
    "make_part",
    "misconceptions",
    "named",
    "no_such_rank",
    "the_cuts",
    "with_ranks",
]

_COLLECTIVES = ("broadcast", "barrier", "all_reduce", "all_gather", "reduce", "gather", "scatter")


def borders(num_layers: int, ranks: int) -> list[range]:
    """Every rank's layers, the first ranks with one more."""
    size, longer = divmod(num_layers, ranks)
    starts = [rank * size + min(rank, longer) for rank in range(ranks + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def make_part(widths: list[int], number: int, seed: int) -> nn.Sequential:
    """Stage ``number`` of a small model in float64: a layer and tanh; the same for the same seed, on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + number)
        return nn.Sequential(nn.Linear(widths[number], widths[number + 1]), nn.Tanh()).double()


def given(num_rows: int, width: int, seed: int) -> torch.Tensor:
    """A batch of float64 rows; the same for the same seed."""
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def crossed(recording: Recording, source: int, target: int) -> list[Message]:
    """The messages that one rank sent another, in order."""
    return [message for message in recording.messages(source, "send") if message.peer == target]


def the_cuts(case: str, recording: Recording, forward: list[int], backward: list[int], steps: int = 1) -> None:
    """Raises Wrong unless each cut was crossed once a step each way, by messages of the expected bytes.

    ``forward[r]`` and ``backward[r]`` are the bytes of one message between ranks r and r + 1; 0 for none.
    """
    for rank in range(recording.world_size):
        for message in recording.messages(rank):
            if message.kind not in ("send", "recv"):
                detail = f"expected send and recv only, rank {rank} called {message.kind}"
                raise Wrong(case, detail, ("collective",), kind=message.kind)
    for cut in range(recording.world_size - 1):
        for source, target, size in ((cut, cut + 1, forward[cut]), (cut + 1, cut, backward[cut])):
            sizes = [message.bytes for message in crossed(recording, source, target)]
            if sizes != (want := [size] * steps if size else []):
                detail = f"messages from rank {source} to rank {target}: expected {_sizes(want)}, got {_sizes(sizes)}"
                raise Wrong(case, detail, ("messages",) if len(sizes) > len(want) else (), extra=len(sizes) - len(want))


def _sizes(sizes: list[int]) -> str:
    if not sizes:
        return "none"
    return f"{len(sizes)} ({', '.join(f'{size:,}' for size in sizes[:6])}{', …' if sizes[6:] else ''} bytes)"


def named(failed: RankFailed, known: dict[str, str | tuple[str, ...] | None], **fields) -> Wrong:
    """The failure, named as the first misconception whose words stand in the verdict or in the line it happened at.

    A tuple of words is one or the other.
    """
    lines = [failure.frames[-1].code for failure in failed.error.failures.values() if failure.frames]
    said = "\n".join([failed.error.verdict, *lines])
    kind = next((kind for kind in _COLLECTIVES if f"{kind}(" in said), None)
    known = known | {"collective": f"{kind}(" if kind and "collective" in known else None}
    for id, words in known.items():
        if any(word in said for word in ((words,) if isinstance(words, str) else words or ())):
            return failed.because(id, kind=kind, **fields)
    return failed


def no_such_rank(kind: str, got: int, ranks: int) -> str:
    """What the runner says of a "send" to, or a "recv" from, a rank that is not there."""
    return f"{kind} expects a rank of the group, from 0 to {ranks - 1}, got {got}"
