"""The check of AsyncMail: begins at once, waits before use, and lets go at the end."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.pipeline.common import misconceptions, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Wait
from distlab.ranks.outcome import Run

NUM_MICRO = 3
_VERDICTS = {
    "send-first": ("each to send to the next", "each wait to send to the other"),
    "receive-first": ("each to receive from the next", "each wait to receive from the other"),
    "unwaited": ("dropped the Work", "before its isend", "before its irecv"),
}


def value(which: str, micro: int, rank: int) -> torch.Tensor:
    """What a rank sends for a micro-batch: each tensor has other numbers, and another length."""
    code = 100 * rank + 10 * "FB".index(which) + micro
    return torch.full((micro + 1,), float(code), dtype=torch.float64)


def exchange(make_mail, make_step, sends_first: bool) -> dict:
    """On a rank: sends to both neighbours on a ring and receives from both; returns what was taken and what is left."""
    rank, mail, taken = dist.get_rank(), make_mail(), {}
    steps = [(which, micro) for micro in range(NUM_MICRO) for which in "FB"]

    def send_all() -> None:
        for which, micro in steps:
            step = make_step("Send" + which, micro)
            mail.boxes[step] = value(which, micro, rank)
            mail.send(step)

    def receive_all() -> None:
        for micro, which in ((micro, which) for micro in range(NUM_MICRO) for which in "BF"):
            mail.receive(make_step("Recv" + which, micro), torch.full((micro + 1,), -1.0, dtype=torch.float64))

    for begin in (send_all, receive_all) if sends_first else (receive_all, send_all):
        begin()
    for which, micro in steps:
        taken[f"{which}{micro}"] = mail.take(make_step("Recv" + which, micro))
    mail.close()
    return {"taken": taken, "left": len(mail.boxes)}


def check_async_mail(learners: type, trial: Trial) -> str:
    """Tries 2 to 4 ranks that all send first, then ranks that all receive first."""
    make_step = learners.take.__globals__["Step"]
    for ranks in (3, 2, 4):
        for sends_first in (True, False):
            case = f"{with_ranks(ranks)} that all {'send' if sends_first else 'receive'} first"
            arguments = learners, make_step, sends_first
            run = _watched(trial, case, arguments, ranks)
            came = [of_rank["taken"] for of_rank in run.values]
            compare(f"{case}, what was taken", came, _right(ranks), {"no-tag": _right(ranks, tags=False)})
            for rank, of_rank in enumerate(run.values):
                if of_rank["left"]:
                    detail = f"rank {rank}, tensors left in self.boxes at the end: expected 0, got {of_rank['left']}"
                    raise Wrong(case, detail, ("hoards",))
    return "sends and receives only begin, take waits, close waits for the rest; 2 to 4 ranks, whoever begins"


def _watched(trial: Trial, case: str, arguments: tuple, ranks: int) -> Run:
    """Runs it; names a failure that a known mistake explains, and looks for messages that nobody waited for."""
    try:
        run = trial.watch(case, exchange, *arguments, ranks=ranks)
    except RankFailed as failed:
        said = failed.error.verdict
        raise failed.because(
            *[id for id, all_words in _VERDICTS.items() if any(w in said for w in all_words)]
        ) from None
    for rank, history in enumerate(run.recording.ranks):
        waited = {event.id for event in history if isinstance(event, Wait)}
        for message in run.recording.messages(rank):
            if message.id not in waited:
                detail = f"rank {rank} never waited for its i{message.kind}, rank {message.peer} at the other end"
                raise Wrong(case, detail, ("unwaited",))
    return run


def _right(ranks: int, tags: bool = True) -> list[dict[str, torch.Tensor]]:
    """What every rank takes: forwards from the left, backwards from the right.

    Two ranks are each other's left and right; without tags the one's forward is taken for its backward.
    """
    ways = {"F": -1, "B": 1}
    sent_as = dict(zip("FB", "FB" if tags or ranks > 2 else "BF"))
    return [
        {
            f"{which}{micro}": value(sent_as[which], micro, (rank + ways[which]) % ranks)
            for micro in range(NUM_MICRO)
            for which in "FB"
        }
        for rank in range(ranks)
    ]


ASYNC_MAIL = Exercise(
    "AsyncMail",
    check_async_mail,
    misconceptions=misconceptions(
        send_first="send() waits until the message has been received, and all ranks sit there: it is only to begin, "
        "with isend, and close() waits.",
        receive_first="Every rank waits to receive, and nobody has sent: receive() is only to begin, with irecv, and "
        "take() waits. send() begins at once, not later.",
        unwaited="A Work was never waited for. A tensor may be read only after its irecv's wait(), and be let go only "
        "after its isend's: take() waits for the one, close() for all of the other.",
        hoards="Tensors stay in self.boxes after they were sent or taken, and keep their memory: pop them.",
        no_tag="With two stages, both neighbours are the same rank, and an activation was taken for a gradient: the "
        "tag tells them apart, on both sides.",
    ),
    hints=(
        "isend and irecv take the same arguments as send and recv, return at once, and give a Work, whose wait() "
        "returns when it is done. Where must each Work be kept, and which method waits for it?",
        "send: self.leaving.append((dist.isend(tensor, peer, tag=tag), tensor)). receive: self.arriving[step] = "
        "dist.irecv(room, peer, tag=tag). take: self.arriving.pop(step).wait(). close: wait for each in self.leaving.",
    ),
)
