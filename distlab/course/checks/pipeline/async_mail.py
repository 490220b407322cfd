"""The check of AsyncMail: begins at once, waits before use, and lets go at the end."""

from __future__ import annotations

from collections import Counter, deque

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
    "twice": ("was waited for before",),
}


def value(which: str, micro: int, rank: int) -> torch.Tensor:
    """What a rank sends for a micro-batch: each tensor has other numbers, and another length."""
    code = 100 * rank + 10 * "FB".index(which) + micro
    return torch.full((micro + 1,), float(code), dtype=torch.float64)


def exchange(make_mail, make_step, sends_first: bool) -> dict:
    """On a rank: two steps with one mail, in which it sends to both neighbours on a ring and receives from both.

    Returns what was taken, what is left in the mail after each step, and how many sent tensors it let go too soon.
    """
    rank, mail = dist.get_rank(), make_mail()
    taken, left, gone = {}, Counter(), 0
    steps = [(which, micro) for micro in range(NUM_MICRO) for which in "FB"]

    def send_all() -> None:
        for which, micro in steps:
            step = make_step("Send" + which, micro)
            mail.boxes[step] = value(which, micro, rank)
            mail.send(step)

    def receive_all() -> None:
        for micro, which in ((micro, which) for micro in range(NUM_MICRO) for which in "BF"):
            mail.receive(make_step("Recv" + which, micro), torch.full((micro + 1,), -1.0, dtype=torch.float64))

    for again in ("", " again"):
        for begin in (send_all, receive_all) if sends_first else (receive_all, send_all):
            begin()
        gone += sum(not any(torch.equal(t, value(*step, rank)) for t in tensors_in(vars(mail))) for step in steps)
        for which, micro in steps:
            taken[f"{which}{micro}{again}"] = mail.take(make_step("Recv" + which, micro))
        mail.close()
        left.update({name: len(getattr(mail, name, ())) for name in ("boxes", "arriving", "leaving")})
    return {"taken": taken, "left": dict(left), "gone": gone}


def tensors_in(kept: object) -> list[torch.Tensor]:
    """All tensors in dicts, lists and tuples inside one another."""
    if isinstance(kept, torch.Tensor):
        return [kept]
    if isinstance(kept, dict):
        kept = list(kept.values())
    return [t for each in kept for t in tensors_in(each)] if isinstance(kept, list | tuple | set | deque) else []


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
                _check_left(case, rank, **of_rank)
    return "sends and receives only begin, take waits, close waits for the rest; 2 to 4 ranks, whoever begins"


def _check_left(case: str, rank: int, taken: dict, left: dict[str, int], gone: int) -> None:
    if gone:
        detail = f"rank {rank}, sent tensors that were not in the mail any more before close(): expected 0, got {gone}"
        raise Wrong(case, detail, ("let-go",))
    for name, number in left.items():
        if number:
            detail = f"rank {rank}, entries left in self.{name} after close(): expected 0, got {number} in two steps"
            raise Wrong(case, detail, ("hoards" if name == "boxes" else "not-forgotten",))


def _watched(trial: Trial, case: str, arguments: tuple, ranks: int) -> Run:
    """Runs it; names a failure that a known mistake explains, and looks for messages that nobody waited for."""
    try:
        run = trial.watch(case, exchange, *arguments, ranks=ranks)
    except RankFailed as failed:
        said = failed.error.verdict
        if "dropped the Work" in said or "before its i" in said:
            raise Wrong(case, said, ("unwaited-send" if "isend" in said else "unwaited-receive",)) from None
        raise failed.because(
            *[id for id, all_words in _VERDICTS.items() if any(w in said for w in all_words)]
        ) from None
    for rank, history in enumerate(run.recording.ranks):
        waited = {event.id for event in history if isinstance(event, Wait)}
        for message in run.recording.messages(rank):
            if message.id not in waited:
                detail = f"rank {rank} never waited for its i{message.kind}, rank {message.peer} at the other end"
                raise Wrong(case, detail, ("unwaited-send" if message.kind == "send" else "unwaited-receive",))
    return run


def _right(ranks: int, tags: bool = True) -> list[dict[str, torch.Tensor]]:
    """What every rank takes: forwards from the left, backwards from the right.

    Two ranks are each other's left and right; without tags the one's forward is taken for its backward.
    """
    ways = {"F": -1, "B": 1}
    sent_as = dict(zip("FB", "FB" if tags or ranks > 2 else "BF"))
    return [
        {
            f"{which}{micro}{again}": value(sent_as[which], micro, (rank + ways[which]) % ranks)
            for again in ("", " again")
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
        unwaited_send="The Work of an isend was never waited for: the tensor may be let go only after its wait(). "
        "Keep each pair of Work and tensor in self.leaving; close() waits for all of them.",
        unwaited_receive="The Work of an irecv was never waited for: the tensor may be read only after its wait(). "
        "Keep the Work in self.arriving; take() waits for it.",
        let_go="A tensor that was sent is kept nowhere until close(): its memory can be used anew while it "
        "is still on its way. Keep it beside its Work in self.leaving.",
        twice="A Work is waited for a second time: take() and close() must forget the Works that they have waited for, "
        "since the mail is used for the next step, too.",
        not_forgotten="Works that were waited for stay in the mail, and with them their tensors: take() pops its Work "
        "from self.arriving, and close() leaves self.leaving empty.",
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
