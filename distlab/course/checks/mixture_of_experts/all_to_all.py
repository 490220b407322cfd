"""The check of all_to_all: rows that change places between ranks, by messages alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import keep_inputs, misconceptions, named, with_ranks
from distlab.course.compare import difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Drop
from distlab.ranks.outcome import Run

# ranks, the shape of a row, dtype, whether the rows lie scattered in memory
CASES = (
    (2, (), torch.int64, False),
    (3, (2,), torch.float64, False),
    (1, (3,), torch.float64, False),
    (4, (2, 2), torch.float32, True),
)

_LATE = 0.01  # seconds by which each rank is later than the one before: what is overwritten too early shows


def table(ranks: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A rank's rows; every number of the world is another."""
    size = ranks * ranks * torch.Size(shape).numel()
    numbers = torch.randperm(2 * size, generator=torch.Generator().manual_seed(seed))[:size]
    return numbers.view(ranks, ranks, *shape)[rank].to(dtype)


def exchanged(all_to_all: Callable, shape: tuple[int, ...], dtype: torch.dtype, seed: int, scattered: bool) -> dict:
    """On a rank: what came, and whether x is as it was."""
    x = table(dist.get_world_size(), dist.get_rank(), shape, dtype, seed)
    mine = x.transpose(0, -1).contiguous().transpose(0, -1) if scattered else x.clone()
    time.sleep(_LATE * dist.get_rank())
    y = all_to_all(mine)
    is_other = isinstance(y, torch.Tensor) and y.data_ptr() != mine.data_ptr()
    came = y.clone() if isinstance(y, torch.Tensor) else y
    return dict(y=came, kept=torch.equal(mine, x), is_other=is_other)


def check_all_to_all(learners: Callable, trial: Trial) -> str:
    """Tries ``all_to_all`` on 1 to 4 ranks."""
    for ranks, shape, dtype, scattered in CASES:
        case = f"{with_ranks(ranks)} and rows of shape {shape}" + (", scattered in memory" if scattered else "")
        try:
            run = trial.watch(case, exchanged, learners, shape, dtype, trial.seed, scattered, ranks=ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, ranks, shape, dtype, trial.seed)
        _check_messages(case, run, ranks)
    return "every row is with its rank, by one message for each pair of ranks each way; on 1 to 4 ranks"


_WORDS = {
    "send-first": ("each wait to send to the other", "each to send to the next"),
    "receive-first": ("each wait to receive from the other", "each to receive from the next"),
    "unwaited": ("before its isend",),
    "itself": ("this rank itself", "same as the rank of the current process"),
    "scattered": ("must be contiguous", "be contiguous"),
}


def _compare(case: str, run: Run, ranks: int, shape, dtype, seed: int) -> None:
    tables = [table(ranks, rank, shape, dtype, seed) for rank in range(ranks)]
    want = [torch.stack([tables[source][rank] for source in range(ranks)]) for rank in range(ranks)]
    around = [[(rank + step) % ranks for step in range(ranks)] for rank in range(ranks)]
    beliefs = {
        "nothing-moved": tables,
        "own-row": [torch.stack([tables[s][s] for s in range(ranks)]) for _ in range(ranks)],
        "first-row": [torch.stack([tables[s][0] for s in range(ranks)]) for _ in range(ranks)],
        "order-of-arrival": [want[rank][around[rank]] for rank in range(ranks)],
        "backwards": [want[rank].flip(0) for rank in range(ranks)],
    }
    got = [found["y"] for found in run.values]
    if all(isinstance(y, torch.Tensor) and y.shape == w.shape for y, w in zip(got, want)):
        others = [[s for s in range(ranks) if s != rank] for rank in range(ranks)]
        missing = [rank for rank in range(ranks) if not torch.equal(got[rank][rank], want[rank][rank])]
        if missing and all(torch.equal(got[r][others[r]], want[r][others[r]]) for r in range(ranks)):
            rank = missing[0]
            detail = f"rank {rank}: row {rank}: expected {want[rank][rank].tolist()}, got {got[rank][rank].tolist()}"
            raise Wrong(case, detail, ("keeps-nothing",), rank=rank)
    if detail := difference_by_rank(got, want):
        believed = tuple(id for id, wrong in beliefs.items() if not difference_by_rank(got, wrong))
        if not believed and _came_back(run, got, want, tables):
            believed = ("overwrites",)
        raise Wrong(case, detail, believed)
    for rank, found in enumerate(run.values):
        if not found["is_other"]:
            believed = () if found["kept"] else ("overwrites",)
            raise Wrong(case, f"rank {rank}: expected a tensor of its own, got x_WD itself", believed)
    keep_inputs(case, [found["kept"] for found in run.values], "x_WD")


def _came_back(run: Run, got: list, want: list[torch.Tensor], tables: list[torch.Tensor]) -> bool:
    """Whether all messages went their way, and what is wrong is what a rank had itself sent there."""
    others = [[other for other in range(len(want)) if other != rank] for rank in range(len(want))]
    for rank, peers in enumerate(others):
        for kind in ("send", "recv"):
            if sorted(m.peer for m in run.recording.messages(rank, kind)) != peers:
                return False
        if not isinstance(got[rank], torch.Tensor) or got[rank].shape != want[rank].shape:
            return False
        for row, right, own in zip(got[rank], want[rank], tables[rank]):
            if not torch.equal(row, right) and not torch.equal(row, own):
                return False
    return True


def _check_messages(case: str, run: Run, ranks: int) -> None:
    recording = run.recording
    for rank in range(ranks):
        collectives = [m.kind for m in recording.messages(rank) if m.kind not in ("send", "recv")]
        if collectives:
            detail = f"rank {rank}: expected send and recv only, got {collectives[0]}"
            raise Wrong(case, detail, ("collective",), kind=collectives[0])
        sends = [m for m in recording.messages(rank, "send")]
        pairs = sorted(m.peer for m in sends)
        want = [other for other in range(ranks) if other != rank]
        if pairs != want:
            detail = f"rank {rank}: expected one message to each of ranks {want}, got messages to {pairs}"
            raise Wrong(case, detail, ("too-many",) if len(pairs) > len(want) else ())
        if recording.events(Drop, rank):
            raise Wrong(case, f"rank {rank}: an isend was never waited for", ("unwaited",))


ALL_TO_ALL = Exercise(
    "all_to_all",
    check_all_to_all,
    misconceptions=misconceptions(
        nothing_moved="This is x as it was: nothing has changed places.",
        own_row="Every rank sent the row with its own number. Row r goes to rank r.",
        first_row="Every rank sent its row 0. Row r goes to rank r.",
        order_of_arrival="The rows lie in the order in which they were received, beginning with this rank's own. What "
        "rank s sent belongs into row s.",
        backwards="The rows are in reversed order: what rank s sent belongs into row s.",
        keeps_nothing="Row {rank} of rank {rank} is missing: what a rank has for itself it keeps, without a message.",
        overwrites="Rows are received into the tensor from which others are still being sent, and overwrite those: a "
        "rank may get back what it sent itself. Receive into a tensor of its own.",
        send_first="All ranks wait to send and nobody receives. Start every send with isend, then receive, then wait.",
        receive_first="All ranks wait to receive and nobody has sent. Start every send with isend before you receive.",
        unwaited="An isend was started and never waited for: the message may be lost. Keep the handles, and wait() for "
        "each at the end.",
        itself="A rank sends to itself. Its own row it simply copies.",
        scattered="A row does not lie contiguously in memory; make x_WD contiguous before you send parts of it.",
        collective="You called {kind}, a collective. Build this one from messages: isend and recv.",
        too_many="A rank sends more than the one row to each other rank.",
    ),
    hints=(
        "Three loops over the other ranks: start an isend of row r to rank r and keep its handle; receive into row s "
        "of the result from rank s; wait for the handles. Your own row you copy.",
        "sending = [dist.isend(x_WD[other], other) for other in others], then dist.recv(y_WD[other], other) for each "
        "other, then one.wait() for each of sending.",
    ),
)
